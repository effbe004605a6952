"""What an agent said about one instance at one moment.

Every number may be missing (None): missing is neither zero nor bad. Ranges were checked at the edge
(`ingest.decode`), so that a number that is here can be believed to be in range.
"""

from __future__ import annotations

from enum import StrEnum

from xds_server.core.model import InstanceId
from xds_server.core.record import record


class EngineState(StrEnum):
    """Whether the engine can serve, as far as the agent can tell."""

    UNKNOWN = "unknown"
    UP = "up"
    LOADING = "loading"
    DOWN = "down"
    HUNG = "hung"
    SLEEPING = "sleeping"


class GpuHealth(StrEnum):
    """The worst health among an instance's GPUs."""

    UNKNOWN = "unknown"
    OK = "ok"
    THROTTLED = "throttled"
    RESET_REQUIRED = "reset_required"
    LOST = "lost"


class MemoryKind(StrEnum):
    """What the GPU's memory is; the VRAM rule applies to DEDICATED only."""

    UNKNOWN = "unknown"
    DEDICATED = "dedicated"
    UNIFIED = "unified"
    COHERENT = "coherent"


class TokenResult(StrEnum):
    """What came of the agent asking the engine for one token."""

    UNKNOWN = "unknown"
    OK = "ok"
    BUSY = "busy"
    """Rejected, or late while it had other work: no fault."""
    SILENT = "silent"
    """Late although it had nothing else to do."""
    FAILED = "failed"


@record
class TokenProbe:
    """The last such answer. What it proves is in `EngineFacts.state`; this tells the cause apart."""

    result: TokenResult
    row: int = 0
    """Silent or failed answers in a row."""
    took_s: float = 0.0


@record
class EngineFacts:
    """The engine's own numbers. Counters restart from zero when `restarts` grows."""

    state: EngineState = EngineState.UNKNOWN
    detail: str = ""
    kv_ratio: float | None = None
    """Used share of the KV cache, 0-1, the largest over data-parallel ranks."""
    waiting: float | None = None
    """Requests queued inside the engine."""
    running: float | None = None
    """Requests being computed."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    finished_total: float | None = None
    """Requests the engine has completed."""
    slots: float | None = None
    """Concurrent requests the engine accepts, where it says so."""
    kv_capacity_tokens: float | None = None
    reserved_ratio: float | None = None
    """Share of GPU memory that the engine reserves at start, 0-1."""
    restarts: int = 0
    out_of_memory: bool = False
    """The engine ended with signs of memory exhaustion."""
    token_probe: TokenProbe | None = None
    """None where the agent does not ask."""


@record
class GpuFacts:
    """The instance's GPUs, reduced: worst health, maximum pressure, minimum free memory."""

    health: GpuHealth = GpuHealth.UNKNOWN
    detail: str = ""
    memory_kind: MemoryKind = MemoryKind.UNKNOWN
    vram_ratio: float | None = None
    """(used + reserved) / total, 0-1."""
    vram_free_bytes: int | None = None
    shared: bool = False
    """Another instance uses one of these GPUs."""


@record
class Sample:
    """One agent's view of one instance."""

    instance: InstanceId
    observed_at: float
    """Monotonic seconds on the control plane's clock: arrival minus the age the agent stated."""
    engine: EngineFacts
    gpu: GpuFacts | None = None
    draining: bool = False
    agent: str = ""

    @property
    def urgent(self) -> bool:
        """Whether waiting for the throttle could send requests into a fault or a drain."""
        if self.draining:
            return True
        # Hashing a member of an enum is a Python call: nearly every engine is up, every GPU well.
        state, gpu = self.engine.state, self.gpu
        if state is not _UP and state in _URGENT_ENGINE:
            return True
        return gpu is not None and gpu.health is not _OK and gpu.health in _URGENT_GPU


_UP, _OK = EngineState.UP, GpuHealth.OK
_URGENT_ENGINE = frozenset({EngineState.DOWN, EngineState.HUNG, EngineState.SLEEPING})
_URGENT_GPU = frozenset({GpuHealth.RESET_REQUIRED, GpuHealth.LOST})
