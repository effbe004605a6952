"""XID errors: which ones count against a GPU, for how long, and how it comes back.

The driver reports an XID once, to whoever is waiting, without history. The ledger keeps what matters:
an XID of the reset class makes the GPU RESET_REQUIRED for `hold_s`, and after that until `verify_reads`
readings in a row were good with no recovery action asked for. A GPU must be able to come back: marking
it unhealthy for ever is the most disliked behavior of NVIDIA's device plugin (k8s-device-plugin#1014).

Writers take a lock that is never held across a driver call; `overlay` reads without one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from sidecar_agent.gpu.facts import GpuHealth, GpuReading, GpuSnapshot
from sidecar_agent.gpu.health import BROKEN, badness
from sidecar_agent.gpu.notices import Notices

log = structlog.get_logger(__name__)

_RECENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """Which XIDs mean what (NVIDIA's XID catalog; k8s-device-plugin's and dcgm's lists)."""

    ignored: frozenset[int] = frozenset({13, 31, 43, 45, 68})
    """Faults of an application, not of the GPU."""
    reset: frozenset[int] = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
    """The GPU needs a reset or the host a reboot. 94 (contained ECC error) is not among them: only the
    application must restart."""
    hold_s: float = 60.0
    """How long after the last XID of the reset class a GPU stays out at least."""
    verify_reads: int = 3
    """Good readings in a row that prove it is back."""
    recent_s: float = 600.0
    """How long an XID is shown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an XID happened: a GPU, or one MIG GPU instance of it."""

    uuid: str
    gpu_instance_id: int | None = None

    def covers(self, gpu: GpuReading) -> bool:
        """Tell whether a device is affected: the GPU itself, or the MIG devices in the place."""
        if self.gpu_instance_id is None:
            return self.uuid in (gpu.uuid, gpu.parent_uuid)
        return gpu.parent_uuid == self.uuid and gpu.gpu_instance_id == self.gpu_instance_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A GPU that is out because of an XID."""

    xid: int
    held_until: float
    good_reads: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    place: Place
    xid: int
    at: float


class XidLedger:
    """What XIDs were seen and which GPUs are out because of them. Any thread."""

    def __init__(self, policy: XidPolicy | None = None) -> None:
        self._policy = policy or XidPolicy()
        self._lock = threading.Lock()
        self._notices = Notices()
        self._faults: Mapping[Place, Fault] = MappingProxyType({})
        self._recent: tuple[_Seen, ...] = ()
        self._counts: dict[tuple[str, int], int] = {}
        self._on_fault: Callable[[], None] | None = None

    def subscribe(self, on_fault: Callable[[], None]) -> None:
        """Call back, on the thread that records it, when a GPU goes out because of an XID."""
        self._on_fault = on_fault

    @property
    def counts(self) -> Mapping[tuple[str, int], int]:
        """XIDs since the start, by GPU and XID."""
        with self._lock:
            return dict(self._counts)

    def record(self, place: Place, xid: int, *, now: float) -> None:
        """Take in one XID event; the same XID twice counts twice."""
        is_reset = xid in self._policy.reset
        with self._lock:
            count = self._counts.get((place.uuid, xid), 0) + 1
            self._counts[place.uuid, xid] = count
            self._recent = tuple(deque((*self._recent, _Seen(place, xid, now)), maxlen=_RECENT * 8))
            if is_reset:
                fault = Fault(xid=xid, held_until=now + self._policy.hold_s)
                self._faults = MappingProxyType({**self._faults, place: fault})
        self._log(place, xid, count)
        if is_reset and self._on_fault is not None:
            self._on_fault()

    def _log(self, place: Place, xid: int, count: int) -> None:
        """Say the 1st, 10th, 100th of a kind: applications can raise thousands."""
        if not self._notices.changed(f"{place.uuid} {xid}", int(math.log10(count))):
            return
        quiet = xid in self._policy.ignored
        (log.info if quiet else log.warning)(
            "gpu_xid_received",
            gpu=place.uuid,
            xid=xid,
            count=count,
            gpu_instance=place.gpu_instance_id,
            means="application" if quiet else "reset" if xid in self._policy.reset else "warning",
        )

    def observe(self, gpus: Iterable[GpuReading], *, now: float) -> None:
        """Let GPUs come back whose hold is over and whose readings are good."""
        if not self._faults:
            return
        readings = tuple(gpus)
        with self._lock:
            faults = dict(self._faults)
            for place, fault in self._faults.items():
                if now < fault.held_until or not _is_good(place, readings):
                    faults[place] = replace(fault, good_reads=0)
                elif fault.good_reads + 1 < self._policy.verify_reads:
                    faults[place] = replace(fault, good_reads=fault.good_reads + 1)
                else:
                    del faults[place]
                    log.info("gpu_xid_cleared", gpu=place.uuid, xid=fault.xid)
            self._faults = MappingProxyType(faults)

    def overlay(self, snapshot: GpuSnapshot, *, now: float) -> GpuSnapshot:
        """Add to a snapshot what XIDs say; never blocks."""
        faults, recent = self._faults, self._recent
        if not recent:
            return snapshot
        gpus = tuple(self._overlaid(gpu, faults, recent, now) for gpu in snapshot.gpus)
        return replace(snapshot, gpus=gpus)

    def _overlaid(
        self,
        gpu: GpuReading,
        faults: Mapping[Place, Fault],
        recent: tuple[_Seen, ...],
        now: float,
    ) -> GpuReading:
        since = now - self._policy.recent_s
        xids = [
            seen.xid
            for seen in recent
            if seen.at >= since and (seen.place.covers(gpu) or seen.place.uuid == gpu.uuid)
        ]
        gpu = replace(gpu, recent_xids=tuple(xids[-_RECENT:]))
        fault = next((fault for place, fault in faults.items() if place.covers(gpu)), None)
        if fault is None or badness(gpu.health) >= badness(GpuHealth.RESET_REQUIRED):
            return gpu
        # The same words for as long as it lasts: a countdown would look like news every time.
        is_held = now < fault.held_until
        why = f"held for {self._policy.hold_s:g} s" if is_held else "waiting for good readings"
        return replace(gpu, health=GpuHealth.RESET_REQUIRED, detail=f"XID {fault.xid}: {why}")


def _is_good(place: Place, gpus: tuple[GpuReading, ...]) -> bool:
    """Good: something in the place answers well and nothing in it is broken.

    A MIG-enabled GPU itself may refuse unprivileged callers; its MIG devices then speak for it.
    """
    there = [gpu.health for gpu in gpus if place.covers(gpu)]
    well = {GpuHealth.OK, GpuHealth.THROTTLED}
    return any(health in well for health in there) and not any(h in BROKEN for h in there)
