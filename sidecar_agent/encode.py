"""Samples to wire messages, and the server's messages back to values. Field rules: protos/README.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent.engine.facts import EngineState, TokenProbe, TokenResult
from sidecar_agent.gpu.facts import Fact, FactStatus, GpuHealth, GpuReading, MemoryKind
from sidecar_agent.gpu.reduce import GpuGroup
from sidecar_agent.identity import Identity
from sidecar_agent.join import Sample

PROTOCOL: Final = 1
"""The newest revision of the protocol that this agent speaks."""
_MAX_AGE_MS: Final = 2**32 - 1

_STATES: Final = {
    EngineState.UNKNOWN: pb.ENGINE_STATE_UNSPECIFIED,
    EngineState.UP: pb.ENGINE_STATE_UP,
    EngineState.LOADING: pb.ENGINE_STATE_LOADING,
    EngineState.DOWN: pb.ENGINE_STATE_DOWN,
    EngineState.HUNG: pb.ENGINE_STATE_HUNG,
    EngineState.SLEEPING: pb.ENGINE_STATE_SLEEPING,
}
_HEALTH: Final = {
    GpuHealth.UNKNOWN: pb.GPU_HEALTH_UNSPECIFIED,
    GpuHealth.OK: pb.GPU_HEALTH_OK,
    GpuHealth.THROTTLED: pb.GPU_HEALTH_THROTTLED,
    GpuHealth.RESET_REQUIRED: pb.GPU_HEALTH_RESET_REQUIRED,
    GpuHealth.LOST: pb.GPU_HEALTH_LOST,
}
_MEMORY: Final = {
    MemoryKind.UNKNOWN: pb.MEMORY_KIND_UNSPECIFIED,
    MemoryKind.DEDICATED: pb.MEMORY_KIND_DEDICATED,
    MemoryKind.UNIFIED: pb.MEMORY_KIND_UNIFIED,
    MemoryKind.COHERENT: pb.MEMORY_KIND_COHERENT,
}
_STATUS: Final = {
    FactStatus.NOT_ASKED: pb.FACT_STATUS_UNSPECIFIED,
    FactStatus.OK: pb.FACT_STATUS_OK,
    FactStatus.UNSUPPORTED: pb.FACT_STATUS_UNSUPPORTED,
    FactStatus.ERROR: pb.FACT_STATUS_ERROR,
}
_TOKENS: Final = {
    TokenResult.OK: pb.TOKEN_RESULT_OK,
    TokenResult.BUSY: pb.TOKEN_RESULT_BUSY,
    TokenResult.SILENT: pb.TOKEN_RESULT_SILENT,
    TokenResult.FAILED: pb.TOKEN_RESULT_FAILED,
}
_NUMBERS: Final = (
    "kv_ratio",
    "kv_ratio_mean",
    "waiting",
    "running",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "finished_total",
    "slots",
    "kv_capacity_tokens",
    "reserved_ratio",
)


def hello(identity: Identity, *, agent_version: str, config_hash: str) -> bytes:
    """Encode the first message of a stream."""
    message = pb.AgentMessage()
    body = message.hello
    body.agent, body.epoch = identity.agent, identity.epoch
    body.agent_version, body.config_hash, body.protocol = agent_version, config_hash, PROTOCOL
    for owned in identity.instances:
        one = body.instances.add(
            name=owned.name,
            address=owned.address,
            model=owned.model,
            tier=owned.tier,
            engine=owned.engine,
            gpu_uuids=owned.gpus,
        )
        if owned.capacity is not None:
            one.capacity = owned.capacity
    return bytes(message.SerializeToString())


def samples(batch: Iterable[Sample], *, now: float) -> bytes:
    """Encode a batch; ages are taken at `now`, monotonic seconds."""
    message = pb.AgentMessage()
    for sample in batch:
        _sample(message.samples.samples.add(), sample, now=now)
    return bytes(message.SerializeToString())


def _sample(out: pb.Sample, sample: Sample, *, now: float) -> None:
    out.instance = sample.instance
    out.sample_age_ms = min(_MAX_AGE_MS, max(0, round((now - sample.observed_at) * 1000)))
    out.sequence = sample.sequence
    out.draining = sample.draining
    facts = sample.engine
    out.engine.state = _STATES[facts.state]
    out.engine.detail = facts.detail
    out.engine.restarts = sample.restarts
    out.engine.out_of_memory = sample.out_of_memory
    for name in _NUMBERS:
        if (value := getattr(facts, name)) is not None:
            setattr(out.engine, name, value)
    if facts.token_probe is not None:
        _token_probe(out.engine.token_probe, facts.token_probe)
    if sample.gpu is not None:
        _group(out, sample.gpu)


def _token_probe(out: pb.TokenProbe, probe: TokenProbe) -> None:
    out.result, out.row = _TOKENS[probe.result], probe.row
    out.took_ms = min(_MAX_AGE_MS, max(0, round(probe.took_s * 1000)))


def _group(out: pb.Sample, group: GpuGroup) -> None:
    out.gpu.health = _HEALTH[group.health]
    out.gpu.detail = group.detail
    out.gpu.memory_kind = _MEMORY[group.memory_kind]
    out.gpu.shared = group.shared
    if group.vram_ratio is not None:
        out.gpu.vram_ratio = group.vram_ratio
    if group.vram_free_bytes is not None:
        out.gpu.vram_free_bytes = group.vram_free_bytes
    for device in group.devices:
        _device(out.devices.add(), device)


def _device(out: pb.GpuDevice, device: GpuReading) -> None:
    out.uuid, out.index, out.name = device.uuid, max(0, device.index), device.name
    out.parent_uuid, out.health = device.parent_uuid, _HEALTH[device.health]
    out.recent_xids.extend(device.recent_xids)
    for name in (
        "memory_total_bytes",
        "memory_used_bytes",
        "memory_reserved_bytes",
        "memory_free_bytes",
        "utilization_ratio",
        "temperature_celsius",
        "power_watts",
        "clocks_event_reasons",
        "recovery_action",
    ):
        fact: Fact = getattr(device, name)
        if fact.status is not FactStatus.NOT_ASKED:
            wire = getattr(out, name)
            wire.status, wire.value, wire.error = _STATUS[fact.status], fact.value, fact.error


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server takes the stream."""

    interval_s: float | None
    """How often to send when nothing moves; None = the server has no wish."""
    server_version: str = ""
    protocol: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server does not take an instance, or with an empty name the whole stream."""

    instance: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The server has taken in an instance's samples up to a sequence."""

    sequence: int
    drained: bool


@dataclass(frozen=True, slots=True)
class Ack:
    """What the server has taken in, by instance."""

    taken: dict[str, Taken] = field(default_factory=dict)


class UnreadableMessageError(Exception):
    """The server's bytes are not a ServerMessage."""


def decode(raw: bytes) -> Welcome | Refusal | Ack | None:
    """Decode a server's message; None for a kind that this agent does not know (a newer server).

    Raises:
        UnreadableMessageError: the bytes are no message at all.
    """
    message = pb.ServerMessage()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise UnreadableMessageError(str(error)) from error
    match message.WhichOneof("message"):
        case "welcome":
            ms = message.welcome.interval_ms
            return Welcome(
                ms / 1000 if ms else None, message.welcome.server_version, message.welcome.protocol
            )
        case "refusal":
            refusal = message.refusal
            known = pb.Refusal.Code.DESCRIPTOR.values_by_number.get(refusal.code)
            return Refusal(
                refusal.instance, known.name if known else str(refusal.code), refusal.reason
            )
        case "ack":
            return Ack(
                {one.instance: Taken(one.sequence, one.drained) for one in message.ack.taken}
            )
        case _:
            return None
