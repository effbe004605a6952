"""What the GPUs of this host said in one reading.

Every number is a `Fact`: it is there, it is unsupported, or reading it failed. A failed reading never
shows an older value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FactStatus(StrEnum):
    """Whether a number is there, and if not why."""

    NOT_ASKED = "not_asked"
    OK = "ok"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of a device, or why there is none."""

    status: FactStatus = FactStatus.NOT_ASKED
    value: float = 0.0
    error: str = ""

    @property
    def number(self) -> float | None:
        """The number, or None where there is none."""
        return self.value if self.status is FactStatus.OK else None


class MemoryKind(StrEnum):
    """What the memory of a GPU is."""

    UNKNOWN = "unknown"
    DEDICATED = "dedicated"
    UNIFIED = "unified"
    COHERENT = "coherent"


class GpuHealth(StrEnum):
    """Health of one GPU, or the worst of several."""

    UNKNOWN = "unknown"
    OK = "ok"
    THROTTLED = "throttled"
    RESET_REQUIRED = "reset_required"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU (or MIG device) at one moment; identity is the UUID, never the index."""

    uuid: str
    index: int
    name: str = ""
    parent_uuid: str = ""
    gpu_instance_id: int | None = None
    """MIG: devices of one GPU instance share its memory."""
    health: GpuHealth = GpuHealth.UNKNOWN
    detail: str = ""
    memory_kind: MemoryKind = MemoryKind.UNKNOWN
    memory_total_bytes: Fact = Fact()
    memory_used_bytes: Fact = Fact()
    memory_reserved_bytes: Fact = Fact()
    memory_free_bytes: Fact = Fact()
    utilization_ratio: Fact = Fact()
    temperature_celsius: Fact = Fact()
    power_watts: Fact = Fact()
    clocks_event_reasons: Fact = Fact()
    recovery_action: Fact = Fact()
    recent_xids: tuple[int, ...] = ()


class DriverState(StrEnum):
    """Whether this host's GPUs can be read at all."""

    STARTING = "starting"
    OK = "ok"
    ABSENT = "absent"
    """No driver and no GPU: engine facts flow alone."""
    FAILED = "failed"
    STALLED = "stalled"
    """A call into the driver has not come back."""
    RELEASED = "released"
    """Let go of on request, so that the driver can be upgraded or a GPU reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """All GPUs of the host, read at `read_at` (monotonic seconds)."""

    driver: DriverState
    detail: str = ""
    driver_version: str = ""
    read_at: float | None = None
    gpus: tuple[GpuReading, ...] = ()
    rejected: int = 0
    """Values that were out of range and treated as missing, since the start."""
    restart_needed: bool = False
    """Only a new process can read the GPUs again: the agent should end with exit code 75."""
