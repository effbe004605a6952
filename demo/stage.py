"""The processes of the demo: engines, control plane, agents and two Envoys, all on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from demo import nvmlstub
from demo.children import Child, Children, DemoError, free_ports
from demo.gpu_memory import uuid_of
from demo.play import MODEL, PARTS, RELOAD_S, Part, configuration
from xds_server.resources.bootstrap import bootstrap

ROOT = Path(__file__).resolve().parents[1]
PROXIES = {"sotw": False, "delta": True}
"""Envoys by name, and whether they speak the incremental protocol."""
START_S = 30.0
"""A start that takes longer is a fault: on two idle cores it takes about five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where everything is once it runs."""

    server: str
    """Admin URL of the control plane."""
    engines: Mapping[str, str]
    """Control URLs by instance name."""
    addresses: Mapping[str, str]
    """ip:port of each instance as the proxies see it."""
    proxies: Mapping[str, str]
    """URLs that clients use, by proxy name."""
    admins: Mapping[str, str]
    """Admin URLs by proxy name."""
    gpu_note: str
    """What the agents see of GPUs, in one sentence."""


def envoy_binary() -> Path:
    """Return the Envoy to run: `$ENVOY`, or the one that `make setup` installed.

    Raises:
        DemoError: there is none.
    """
    path = Path(os.environ.get("ENVOY") or ROOT / ".tools/envoy/envoy/_bin/envoy")
    if not os.access(path, os.X_OK):
        raise DemoError(f"there is no Envoy at {path}: run `make setup`, or set ENVOY to a binary")
    return path


async def build(
    children: Children, session: aiohttp.ClientSession, directory: Path, *, envoy: Path
) -> Stage:
    """Start everything and return when both Envoys serve.

    Raises:
        DemoError: something did not start; the message says what and where its log is.
    """
    stub, gpu_note = nvml_stub(directory)
    # Made before the engines fill them: an empty driver is what an agent would see first.
    gpus = (
        {part.name: nvmlstub.StubState(directory / f"{part.name}.gpu") for part in PARTS}
        if stub is not None
        else {}
    )
    engines = await asyncio.gather(
        *(_start_engine(children, part, gpu=gpus.get(part.name)) for part in PARTS)
    )
    addresses = {told["engine"]: f"127.0.0.1:{told['port']}" for told in engines}
    server = await _start_control_plane(children, addresses, directory)
    xds = f"127.0.0.1:{server['xds_port']}"
    admin_ports = free_ports(len(PARTS))
    for part, port in zip(PARTS, admin_ports, strict=True):
        await _start_agent(
            children,
            part,
            directory,
            address=addresses[part.name],
            control_plane=xds,
            admin=f"127.0.0.1:{port}",
            stub=stub,
            gpu=gpus.get(part.name),
        )
    admins = await asyncio.gather(
        *(
            _start_envoy(children, envoy, directory, name=name, xds=xds, delta=delta)
            for name, delta in PROXIES.items()
        )
    )
    stage = Stage(
        server=f"http://127.0.0.1:{server['admin_port']}",
        engines={told["engine"]: f"http://127.0.0.1:{told['control_port']}" for told in engines},
        addresses=addresses,
        proxies=dict(
            zip(
                PROXIES,
                await asyncio.gather(*(_serving(children, session, url) for url in admins)),
                strict=True,
            )
        ),
        admins=dict(zip(PROXIES, admins, strict=True)),
        gpu_note=gpu_note,
    )
    await asyncio.gather(*(_answers(children, session, url) for url in stage.proxies.values()))
    return stage


async def _start_engine(
    children: Children, part: Part, *, gpu: nvmlstub.StubState | None
) -> dict[str, Any]:
    command = [
        *(sys.executable, "-m", "demo.engine", "--name", part.name),
        # Not under the name that clients use: only what a proxy rewrote is answered.
        *("--model", part.model),
        *("--slots", str(part.slots), "--kv-tokens", str(part.kv_tokens)),
        *("--tokens-per-s", str(part.tokens_per_s), "--reload-s", str(RELOAD_S)),
    ]
    if gpu is not None:
        command += ["--gpu-state", str(gpu.path)]
    child = await children.start(part.name, command, env={"PYTHONPATH": str(ROOT)})
    return await _told(children, child, "control_port")


async def _start_control_plane(
    children: Children, addresses: Mapping[str, str], directory: Path
) -> dict[str, Any]:
    config = directory / "control-plane.yaml"
    config.write_text(yaml.safe_dump(configuration(addresses), sort_keys=False))
    child = await children.start(
        "control-plane",
        [
            *(sys.executable, "-m", "xds_server", "serve", config),
            *("--xds-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
            *("--state-dir", directory / "state", "--log-format", "json"),
        ],
    )
    return await _told(children, child, "admin_port")


async def _start_agent(
    children: Children,
    part: Part,
    directory: Path,
    *,
    address: str,
    control_plane: str,
    admin: str,
    stub: Path | None,
    gpu: nvmlstub.StubState | None,
) -> None:
    instance: dict[str, Any] = {
        "name": part.name,
        "url": f"http://{address}",
        "engine": "vllm",
        "capacity": part.slots,
    }
    env = {}
    if stub is not None and gpu is not None:
        # The stub is found before any real driver, by this process alone.
        env = nvmlstub.environment(stub, gpu)
        instance["gpus"] = [uuid_of(gpu.path)]
    settings = {
        "node": f"host-of-{part.name}",
        "control_plane": {"address": control_plane},
        "instances": [instance],
        "gpu": {"backend": "none" if stub is None else "nvml"},
        "admin": admin,
        "log": {"format": "json"},
    }
    config = directory / f"agent-{part.name}.yaml"
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    await children.start(
        f"agent-{part.name}",
        [sys.executable, "-m", "sidecar_agent", "run", "--config", config],
        env=env,
    )


async def _start_envoy(
    children: Children, envoy: Path, directory: Path, *, name: str, xds: str, delta: bool
) -> str:
    """Start an Envoy and return its admin URL."""
    admin_port_file = directory / f"envoy-{name}.admin"
    host, _, port = xds.rpartition(":")
    # What `xds-server bootstrap` prints.
    document = bootstrap(
        node_id=f"demo-{name}",
        cluster="demo",
        xds_host=host,
        xds_port=int(port),
        admin_port=0,
        delta=delta,
    )
    config = directory / f"envoy-{name}.json"
    config.write_text(json.dumps(document, indent=1))
    child = await children.start(
        f"envoy-{name}",
        [
            *(envoy, "-c", config, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"),
            *("--admin-address-path", admin_port_file),
        ],
    )

    async def written() -> str | None:
        text = admin_port_file.read_text() if admin_port_file.exists() else ""
        return text.strip() or None

    address = await children.until(written, what=f"the start of {child.name}", timeout_s=START_S)
    return f"http://{address}"


async def _serving(children: Children, session: aiohttp.ClientSession, admin: str) -> str:
    """Return the URL of the listener that the control plane gave to an Envoy."""

    async def listening() -> str | None:
        async with session.get(f"{admin}/listeners?format=json") as response:
            page = await response.json(content_type=None)
        for each in page.get("listener_statuses", ()):
            address = each.get("local_address", {}).get("socket_address")
            if address and address.get("port_value"):
                return f"http://127.0.0.1:{address['port_value']}"
        return None

    return await children.until(listening, what="Envoy's listener", timeout_s=START_S)


async def _answers(children: Children, session: aiohttp.ClientSession, url: str) -> None:
    """Wait until requests through an Envoy are answered."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}

    async def answered() -> bool | None:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            return response.status == 200 or None

    await children.until(answered, what="the first answer through Envoy", timeout_s=START_S)


async def _told(children: Children, child: Child, key: str) -> dict[str, Any]:
    """Return the first JSON line of a child's log that has `key`."""

    async def line() -> dict[str, Any] | None:
        for text in child.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                told = json.loads(text)
                if isinstance(told, dict) and key in told:
                    return told
        return None

    return await children.until(line, what=f"the start of {child.name}", timeout_s=START_S)


def nvml_stub(directory: Path) -> tuple[Path | None, str]:
    """Build the fake NVML library; None, and why, where that cannot be done."""
    without = "so the agents run without GPUs and read the engines alone"
    try:
        library = nvmlstub.build(directory / "nvml")
    except nvmlstub.StubBuildError as error:
        return None, f"{str(error).splitlines()[0]}; {without}"
    if library is None:
        return None, f"There is no C compiler here, {without}"
    return library, "Each agent sees a simulated GPU of 80 GiB through a stub of NVML"
