"""From telemetry messages to samples, or to the reason why not. Pure and total.

A number that is absent stays missing; a number that is there and cannot be true condemns its sample:
an agent that reports a KV ratio of 17 is not to be believed about the rest either. The exception is
rounding just above one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from xds_server.core.model import InstanceId
from xds_server.core.record import record
from xds_server.core.sample import (
    EngineFacts,
    EngineState,
    GpuFacts,
    GpuHealth,
    MemoryKind,
    Sample,
    TokenProbe,
    TokenResult,
)

MAX_MESSAGE_BYTES = 1024 * 1024
"""A host with 64 instances and 8 GPUs writes about 60 KB."""
MAX_TEXT = 200
"""Details are for people; longer ones are cut."""
_ROUNDING = 1.01
"""Ratios up to here are rounding of 1, not nonsense."""
_MAX_COUNT = 1e15


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message or sample that cannot be used."""

    reason: str
    """Stable name for metrics, e.g. `out_of_range`."""
    text: str
    """What was wrong, for people."""
    instance: str = ""


@record
class Decoded:
    """A sample and the number that orders it within its agent's epoch."""

    sample: Sample
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An instance that an agent says it owns."""

    name: InstanceId
    address: str = ""
    model: str = ""
    tier: str = ""
    capacity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who speaks on a stream."""

    agent: str
    epoch: int
    claims: tuple[Claim, ...]
    agent_version: str = ""
    protocol: int = 0
    config_hash: str = ""


def parse(body: bytes) -> pb.AgentMessage | Rejected:
    """Parse one message of a stream."""
    if len(body) > MAX_MESSAGE_BYTES:
        return Rejected("oversize", f"{len(body)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    try:
        return pb.AgentMessage.FromString(body)
    except DecodeError:
        return Rejected("broken_message", "not a fleet.telemetry.v1.AgentMessage")


def decode_hello(message: pb.AgentMessage) -> Hello | Rejected:
    """Read the first message of a stream."""
    if message.WhichOneof("message") != "hello":
        return Rejected("no_hello", "the first message of a stream is a hello")
    hello = message.hello
    if not hello.agent or len(hello.agent) > MAX_TEXT or not hello.agent.isprintable():
        # It stands in logs and on pages.
        return Rejected("bad_hello", f"hello.agent is no name of 1-{MAX_TEXT} printable characters")
    if hello.epoch == 0:
        return Rejected("bad_hello", "hello.epoch is missing")
    names = [each.name for each in hello.instances]
    if any(not name for name in names) or len(set(names)) < len(names):
        return Rejected("bad_hello", "hello.instances has a name that is empty or twice there")
    claims = tuple(
        Claim(
            name=InstanceId(each.name),
            address=each.address,
            model=each.model,
            tier=each.tier,
            capacity=each.capacity if each.HasField("capacity") else None,
        )
        for each in hello.instances
    )
    for claim in claims:
        if claim.capacity is not None and not 0 < claim.capacity < _MAX_COUNT:
            text = f"capacity {claim.capacity:g} is not above 0 and below {_MAX_COUNT:g}"
            return Rejected("bad_hello", text, claim.name)
    return Hello(
        agent=hello.agent,
        epoch=hello.epoch,
        claims=claims,
        agent_version=hello.agent_version[:MAX_TEXT],
        protocol=hello.protocol,
        config_hash=hello.config_hash[:MAX_TEXT],
    )


def decode_sample(
    message: pb.Sample, *, agent: str, now: float, max_age_s: float
) -> Decoded | Rejected:
    """Turn one sample into the brain's own, dated on the control plane's clock (`now`)."""
    name = message.instance
    if not name:
        return Rejected("no_instance", "sample.instance is missing")
    age_s = message.sample_age_ms / 1000
    if age_s > max_age_s:
        return Rejected("too_old", f"{age_s:.1f} s old; at most {max_age_s:g} s are used", name)
    gpu: GpuFacts | None = None
    try:
        engine = _engine(message.engine)
        if message.HasField("gpu"):
            gpu = _gpu(message.gpu)
    except _OutOfRangeError as error:
        return Rejected("out_of_range", str(error), name)
    sample = Sample(InstanceId(name), now - age_s, engine, gpu, message.draining, agent)
    return Decoded(sample, message.sequence)


class _OutOfRangeError(Exception):
    """A number that cannot be true."""


def _engine(facts: pb.EngineFacts) -> EngineFacts:
    values: list[Any] = [None] * len(_ENGINE_FIELDS)
    values[0], values[1], values[-3], values[-2] = EngineState.UNKNOWN, "", 0, False
    _read(facts, _ENGINE_PLACES, values)
    probe = values[-1]
    if probe is not None:
        result = _TOKEN_RESULT.get(probe.result, TokenResult.UNKNOWN)
        values[-1] = TokenProbe(result, probe.row, probe.took_ms / 1000)
    return EngineFacts(*values)


def _gpu(facts: pb.GpuFacts) -> GpuFacts:
    values: list[Any] = [GpuHealth.UNKNOWN, "", MemoryKind.UNKNOWN, None, None, False]
    _read(facts, _GPU_PLACES, values)
    return GpuFacts(*values)


def _read(facts: Message, places: Mapping[object, _Place], values: list[Any]) -> None:
    """Put what is there in its place: asking for what is set is cheaper than asking for each field."""
    for field, value in facts.ListFields():
        place = places.get(field)
        if place is None:
            continue
        position, kind = place
        if kind is _COUNT:
            # NaN is in no range.
            if not 0 <= value < _MAX_COUNT:
                raise _OutOfRangeError(f"{field.name} {value:g} is not a count")
        elif kind is _RATIO:
            if not 0 <= value <= _ROUNDING:
                raise _OutOfRangeError(f"{field.name} {value:g} is not within 0-1")
            value = min(1.0, value)  # noqa: PLW2901  # what is stored
        elif kind is _TEXT:
            value = value[:MAX_TEXT]  # noqa: PLW2901  # what is stored
        elif kind is not _AS_IT_IS:
            value = kind.get(value, values[position])  # noqa: PLW2901  # what is stored
        values[position] = value


_ENGINE_STATE: dict[int, EngineState] = {
    pb.ENGINE_STATE_UP: EngineState.UP,
    pb.ENGINE_STATE_LOADING: EngineState.LOADING,
    pb.ENGINE_STATE_DOWN: EngineState.DOWN,
    pb.ENGINE_STATE_HUNG: EngineState.HUNG,
    pb.ENGINE_STATE_SLEEPING: EngineState.SLEEPING,
}
_GPU_HEALTH: dict[int, GpuHealth] = {
    pb.GPU_HEALTH_OK: GpuHealth.OK,
    pb.GPU_HEALTH_THROTTLED: GpuHealth.THROTTLED,
    pb.GPU_HEALTH_RESET_REQUIRED: GpuHealth.RESET_REQUIRED,
    pb.GPU_HEALTH_LOST: GpuHealth.LOST,
}
_TOKEN_RESULT: dict[int, TokenResult] = {
    pb.TOKEN_RESULT_OK: TokenResult.OK,
    pb.TOKEN_RESULT_BUSY: TokenResult.BUSY,
    pb.TOKEN_RESULT_SILENT: TokenResult.SILENT,
    pb.TOKEN_RESULT_FAILED: TokenResult.FAILED,
}
_MEMORY_KIND: dict[int, MemoryKind] = {
    pb.MEMORY_KIND_DEDICATED: MemoryKind.DEDICATED,
    pb.MEMORY_KIND_UNIFIED: MemoryKind.UNIFIED,
    pb.MEMORY_KIND_COHERENT: MemoryKind.COHERENT,
}

_COUNT: dict[int, Any] = {}
_RATIO: dict[int, Any] = {}
_TEXT: dict[int, Any] = {}
_AS_IT_IS: dict[int, Any] = {}
"""How the value of a field is read, compared by identity; any other dictionary names enum members."""

_Place = tuple[int, dict[int, Any]]
"""Position in the dataclass, and how to read the value."""

_ENGINE_FIELDS: dict[str, dict[int, Any]] = {
    "state": _ENGINE_STATE,
    "detail": _TEXT,
    "kv_ratio": _RATIO,
    "waiting": _COUNT,
    "running": _COUNT,
    "preemptions_total": _COUNT,
    "prompt_tokens_total": _COUNT,
    "generation_tokens_total": _COUNT,
    "finished_total": _COUNT,
    "slots": _COUNT,
    "kv_capacity_tokens": _COUNT,
    "reserved_ratio": _RATIO,
    "restarts": _AS_IT_IS,
    "out_of_memory": _AS_IT_IS,
    "token_probe": _AS_IT_IS,
}
"""The fields of `EngineFacts`, in its order."""
_GPU_FIELDS: dict[str, dict[int, Any]] = {
    "health": _GPU_HEALTH,
    "detail": _TEXT,
    "memory_kind": _MEMORY_KIND,
    "vram_ratio": _RATIO,
    "vram_free_bytes": _AS_IT_IS,
    "shared": _AS_IT_IS,
}
"""The fields of `GpuFacts`, in its order."""


def _places(message: type[Message], kinds: dict[str, dict[int, Any]]) -> dict[object, _Place]:
    fields = message.DESCRIPTOR.fields_by_name
    return {fields[name]: (number, kind) for number, (name, kind) in enumerate(kinds.items())}


_ENGINE_PLACES = _places(pb.EngineFacts, _ENGINE_FIELDS)
_GPU_PLACES = _places(pb.GpuFacts, _GPU_FIELDS)
