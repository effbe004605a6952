"""`sidecar-agent check` and `once`: read everything one time and say what is seen and what is wrong."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import yaml

from sidecar_agent.agent import Agent, Instance
from sidecar_agent.engine import probe
from sidecar_agent.engine.facts import EngineState
from sidecar_agent.engine.outcome import OutcomeKind
from sidecar_agent.gpu.facts import DriverState, Fact, GpuHealth, GpuReading, GpuSnapshot
from sidecar_agent.gpu.visible import canonical_uuid, resolve_cuda_visible
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.settings import Settings
from sidecar_agent.uplink import Server, trouble

EXIT_OK: Final = 0
EXIT_PROBLEMS: Final = 1
GPU_S: Final = 5.0
"""How long to wait for the driver's first answer."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was seen in one reading, and what is wrong with it."""

    settings: Settings
    snapshot: GpuSnapshot | None
    instances: tuple[Instance, ...]
    control_planes: Mapping[str, str] | None
    """Address -> why the control plane cannot be reached; empty = it can. None = not asked."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]


async def read(settings: Settings, gpu: GpuWorker | None, *, connect: bool) -> Report:
    """Read GPUs and engines once; with `connect` also try to reach every control plane.

    No hello is sent: a second agent of the same name would be taken for the first one's successor.
    """
    if gpu is not None:
        gpu.start()
    agent = Agent(settings, gpu=gpu, epoch=0, clock=time.monotonic, rng=random.Random(0))
    try:
        snapshot = await _snapshot(gpu)
        async with probe.session() as http:
            agent.open(http)
            await asyncio.gather(*(agent.scrape(one) for one in agent.instances.values()))
        planes = await _reach(agent) if connect else None
    finally:
        if gpu is not None:
            gpu.close()
    instances = tuple(agent.instances.values())
    problems = [f"control plane: {why}" for why in (planes or {}).values() if why]
    problems += _gpu_problems(settings, snapshot)
    problems += [problem for one in instances for problem in _engine_problems(one)]
    notes = [
        f"{one.name}: no gpus listed, so neither VRAM nor GPU health is watched"
        for one in settings.instances
        if not one.gpus and snapshot is not None and snapshot.gpus
    ]
    if notes and snapshot is not None:
        notes += _visible_notes(snapshot, os.environ)
    return Report(settings, snapshot, instances, planes, tuple(problems), tuple(notes))


def _visible_notes(snapshot: GpuSnapshot, environment: Mapping[str, str]) -> list[str]:
    """Say which UUIDs the engines' variables would mean, for who has them at hand and no `gpus`."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return []
    order = environment.get("CUDA_DEVICE_ORDER")
    found = resolve_cuda_visible(value, gpus=snapshot.gpus, device_order=order)
    means = f"CUDA_VISIBLE_DEVICES={value} means gpus: [{', '.join(found.uuids)}]"
    return [*found.problems, *([means] if found.uuids else [])]


async def _snapshot(gpu: GpuWorker | None) -> GpuSnapshot | None:
    if gpu is None:
        return None
    deadline = time.monotonic() + GPU_S
    while (snapshot := gpu.latest()).driver is DriverState.STARTING:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    return snapshot


async def _reach(agent: Agent) -> dict[str, str]:
    servers = [uplink.server for uplink in agent.uplinks]
    answers = await asyncio.gather(*map(_connect, servers))
    return {server.address: answer for server, answer in zip(servers, answers, strict=True)}


async def _connect(server: Server) -> str:
    try:
        channel = server.channel()
    except OSError as error:
        return f"cannot open the channel: {error}"
    try:
        why = await trouble(channel)
        return f"no connection to {server.address}: {why}" if why else ""
    finally:
        await channel.close()


def _gpu_problems(settings: Settings, snapshot: GpuSnapshot | None) -> list[str]:
    wanted = {uuid for one in settings.instances for uuid in one.gpus}
    if snapshot is None:
        return ["gpu: instances list gpus, but gpu.backend is none"] if wanted else []
    if snapshot.driver is not DriverState.OK:
        if snapshot.driver is DriverState.ABSENT and not wanted:
            return []
        return [f"gpu: driver {snapshot.driver.value}: {snapshot.detail}"]
    found = {one.uuid: one for one in snapshot.gpus}
    problems = [
        f"{one.name}: GPU {uuid} is not on this host"
        for one in settings.instances
        for uuid in one.gpus
        if canonical_uuid(uuid) not in found
    ]
    return problems + [
        f"gpu {one.uuid}: {one.health.value}: {one.detail}"
        for one in snapshot.gpus
        if one.health in {GpuHealth.RESET_REQUIRED, GpuHealth.LOST}
    ]


def _engine_problems(instance: Instance) -> list[str]:
    outcome, name = instance.outcome, instance.settings.name
    assert outcome is not None
    where = f"{name} ({instance.settings.url})"
    if outcome.kind is not OutcomeKind.PAGE or outcome.facts is None:
        return [f"{where}: {outcome.detail}"]
    facts = outcome.facts
    problems = [f"{where}: {warning}" for warning in facts.warnings]
    if facts.state is not EngineState.UP:
        problems.append(f"{where}: {facts.state.value}: {facts.detail}")
    return problems


def text(report: Report) -> str:
    """Return the report for people."""
    lines = ["settings"]
    shown = yaml.safe_dump(report.settings.shown(), sort_keys=False, default_flow_style=None)
    lines += [f"  {line}" for line in shown.splitlines()]
    lines += ["gpus", *(f"  {line}" for line in _gpu_lines(report.snapshot))]
    lines += ["engines", *(f"  {_engine_line(one)}" for one in report.instances)]
    if report.control_planes is not None:
        lines.append("control plane" if len(report.control_planes) == 1 else "control planes")
        lines += [
            f"  {address}: {why or 'reachable'}" for address, why in report.control_planes.items()
        ]
    if report.notes:
        lines += ["notes", *(f"  {note}" for note in report.notes)]
    lines += ["problems", *(f"  {problem}" for problem in report.problems or ("none",))]
    return "\n".join(lines)


def _gpu_lines(snapshot: GpuSnapshot | None) -> list[str]:
    if snapshot is None:
        return ["not read (gpu.backend is none)"]
    version = f" {snapshot.driver_version}" if snapshot.driver_version else ""
    detail = f" ({snapshot.detail})" if snapshot.detail else ""
    return [f"driver{version}: {snapshot.driver.value}{detail}", *map(_gpu_line, snapshot.gpus)]


def _gpu_line(one: GpuReading) -> str:
    total, used = one.memory_total_bytes, one.memory_used_bytes
    return (
        f"{one.index}: {one.uuid} {one.name}: {one.health.value}, memory {one.memory_kind.value}, "
        f"used {_gib(used)} of {_gib(total)}"
    )


def _gib(fact: Fact) -> str:
    return f"{fact.value / 2**30:.1f} GiB" if fact.number is not None else fact.status.value


def _engine_line(instance: Instance) -> str:
    outcome = instance.outcome
    assert outcome is not None
    gpus = f", gpus {', '.join(instance.settings.gpus)}" if instance.settings.gpus else ""
    line = f"{instance.settings.name} ({instance.settings.url}): "
    facts = outcome.facts
    if facts is None:
        return f"{line}{outcome.kind.value}: {outcome.detail}{gpus}"
    kv = "missing" if facts.kv_ratio is None else f"{facts.kv_ratio:.1%}"
    return (
        f"{line}{outcome.engine or 'unknown engine'} {facts.state.value}, KV {kv}, "
        f"waiting {_number(facts.waiting)}, running {_number(facts.running)}, "
        f"page {outcome.page_bytes / 1024:.1f} KiB in {outcome.took_s * 1000:.0f} ms{gpus}"
    )


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:g}"


def values(report: Report) -> dict[str, Any]:
    """Return the report as JSON values: what would be sent, and what is wrong."""
    return {
        "agent": report.settings.node,
        "driver": None if report.snapshot is None else _driver(report.snapshot),
        "instances": [_instance(one) for one in report.instances],
        "problems": list(report.problems),
        "notes": list(report.notes),
    }


def _driver(snapshot: GpuSnapshot) -> dict[str, Any]:
    return {
        "state": snapshot.driver.value,
        "detail": snapshot.detail,
        "version": snapshot.driver_version,
        "gpus": [asdict(one) for one in snapshot.gpus],
    }


def _instance(instance: Instance) -> dict[str, Any]:
    outcome, group = instance.outcome, instance.gpu
    assert outcome is not None
    return {
        "instance": instance.settings.name,
        "address": instance.settings.endpoint,
        "outcome": outcome.kind.value,
        "detail": outcome.detail,
        "engine": outcome.engine,
        "facts": None if outcome.facts is None else asdict(outcome.facts),
        "gpu": None
        if group is None
        else {
            "health": group.health.value,
            "detail": group.detail,
            "memory_kind": group.memory_kind.value,
            "vram_ratio": group.vram_ratio,
            "vram_free_bytes": group.vram_free_bytes,
            "shared": group.shared,
        },
    }
