"""From telemetry messages to samples, or to the reason why not. Pure and total.

A number that is absent stays missing; a number that is there and cannot be true condemns its sample:
an agent that reports a KV ratio of 17 is not to be believed about the rest either. The exception is
rounding just above one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from xds_server.core.model import InstanceId
from xds_server.core.sample import EngineFacts, EngineState, GpuFacts, GpuHealth, MemoryKind, Sample

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    if not hello.agent or len(hello.agent) > MAX_TEXT:
        return Rejected("bad_hello", f"hello.agent is no name of 1-{MAX_TEXT} characters")
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
            text = f"capacity {claim.capacity:g} is not above 0"
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
    engine = _engine(message.engine)
    gpu = _gpu(message.gpu) if message.HasField("gpu") else None
    for found in (engine, gpu):
        if isinstance(found, str):
            return Rejected("out_of_range", found, name)
    assert isinstance(engine, EngineFacts)
    assert not isinstance(gpu, str)
    sample = Sample(
        instance=InstanceId(name),
        observed_at=now - age_s,
        engine=engine,
        gpu=gpu,
        draining=message.draining,
        agent=agent,
    )
    return Decoded(sample=sample, sequence=message.sequence)


def _engine(facts: pb.EngineFacts) -> EngineFacts | str:
    numbers = _numbers(facts, _ENGINE_NUMBERS)
    if isinstance(numbers, str):
        return numbers
    return EngineFacts(
        state=_ENGINE_STATE.get(facts.state, EngineState.UNKNOWN),
        detail=facts.detail[:MAX_TEXT],
        restarts=facts.restarts,
        out_of_memory=facts.out_of_memory,
        **numbers,
    )


def _gpu(facts: pb.GpuFacts) -> GpuFacts | str:
    numbers = _numbers(facts, _GPU_NUMBERS)
    if isinstance(numbers, str):
        return numbers
    free = facts.vram_free_bytes if facts.HasField("vram_free_bytes") else None
    return GpuFacts(
        health=_GPU_HEALTH.get(facts.health, GpuHealth.UNKNOWN),
        detail=facts.detail[:MAX_TEXT],
        memory_kind=_MEMORY_KIND.get(facts.memory_kind, MemoryKind.UNKNOWN),
        vram_free_bytes=free,
        shared=facts.shared,
        **numbers,
    )


def _numbers(facts: Message, names: Iterable[str]) -> dict[str, float] | str:
    """Return the numbers that are there, or what is wrong with one; NaN is in no range."""
    found: dict[str, float] = {}
    has = facts.HasField
    for name in names:
        if not has(name):
            continue
        value = getattr(facts, name)
        if name.endswith("_ratio"):
            if not 0 <= value <= _ROUNDING:
                return f"{name} {value:g} is not within 0-1"
            value = min(1.0, value)
        elif not 0 <= value < _MAX_COUNT:
            return f"{name} {value:g} is not a count"
        found[name] = value
    return found


_ENGINE_NUMBERS = (
    "kv_ratio",
    "reserved_ratio",
    "waiting",
    "running",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "finished_total",
    "slots",
    "kv_capacity_tokens",
)
_GPU_NUMBERS = ("vram_ratio",)
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
_MEMORY_KIND: dict[int, MemoryKind] = {
    pb.MEMORY_KIND_DEDICATED: MemoryKind.DEDICATED,
    pb.MEMORY_KIND_UNIFIED: MemoryKind.UNIFIED,
    pb.MEMORY_KIND_COHERENT: MemoryKind.COHERENT,
}
