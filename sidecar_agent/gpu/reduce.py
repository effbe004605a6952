"""From the readings of a host's GPUs to the facts of each instance. Pure.

The ranks of a tensor-parallel instance run in lock-step: the fullest GPU bounds it and one broken GPU
breaks it. So: maximum pressure, minimum free memory, worst health, oldest reading; sums are for display.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sidecar_agent.gpu.facts import DriverState, GpuHealth, GpuReading, GpuSnapshot, MemoryKind
from sidecar_agent.gpu.health import badness
from sidecar_agent.gpu.visible import canonical_uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGroup:
    """The GPUs of one instance, reduced. None = missing: neither zero nor bad."""

    health: GpuHealth = GpuHealth.UNKNOWN
    detail: str = ""
    memory_kind: MemoryKind = MemoryKind.UNKNOWN
    vram_ratio: float | None = None
    """(used + reserved) / total, 0-1, the largest over GPUs with memory of their own."""
    vram_free_bytes: int | None = None
    """The smallest over the same GPUs."""
    shared: bool = False
    """Another instance uses one of these GPUs, or the memory of one of these MIG devices."""
    read_at: float | None = None
    """Monotonic seconds of the oldest reading; None where nothing was read."""
    utilization_min: float | None = None
    utilization_max: float | None = None
    """0-1; a straggler shows as a minimum far below the maximum. No load signals."""
    memory_total_bytes: int | None = None
    """Sum for display; MIG devices of one GPU instance count once."""
    devices: tuple[GpuReading, ...] = ()


def reduce_instances(
    snapshot: GpuSnapshot, instances: Mapping[str, Sequence[str]]
) -> dict[str, GpuGroup]:
    """Reduce the GPUs of every instance.

    Args:
        snapshot: The host's GPUs.
        instances: GPU UUIDs by instance; an instance without GPUs is left out of the result.
    """
    places = _Places(snapshot.gpus)
    users: Counter[object] = Counter()
    for uuids in instances.values():
        users.update({places.memory(uuid) for uuid in uuids})
    return {
        name: reduce_gpus(
            snapshot, uuids, shared=any(users[places.memory(uuid)] > 1 for uuid in uuids)
        )
        for name, uuids in instances.items()
        if uuids
    }


def reduce_gpus(snapshot: GpuSnapshot, uuids: Iterable[str], *, shared: bool = False) -> GpuGroup:
    """Reduce the GPUs of one instance.

    Args:
        snapshot: The host's GPUs.
        uuids: The instance's, as configured; time-slicing suffixes are ignored.
        shared: Whether another instance uses one of them.
    """
    by_uuid = {gpu.uuid: gpu for gpu in snapshot.gpus}
    wanted = tuple(dict.fromkeys(canonical_uuid(uuid) for uuid in uuids))
    devices = tuple(by_uuid.get(uuid) or _missing(uuid, snapshot) for uuid in wanted)
    if not devices:
        return GpuGroup(detail=snapshot.detail)
    worst = max(devices, key=lambda gpu: badness(gpu.health))
    own = [gpu for gpu in devices if gpu.memory_kind is MemoryKind.DEDICATED]
    ratios = [ratio for gpu in own if (ratio := vram_ratio(gpu)) is not None]
    free = [gpu.memory_free_bytes.number for gpu in own]
    busy = [gpu.utilization_ratio.number for gpu in devices]
    busy_known = [value for value in busy if value is not None]
    free_known = [value for value in free if value is not None]
    return GpuGroup(
        health=worst.health,
        detail=_detail(devices, worst, snapshot),
        memory_kind=_memory_kind(devices),
        vram_ratio=max(ratios, default=None),
        vram_free_bytes=int(min(free_known)) if free_known else None,
        shared=shared,
        read_at=snapshot.read_at if snapshot.driver is DriverState.OK else None,
        utilization_min=min(busy_known, default=None),
        utilization_max=max(busy_known, default=None),
        memory_total_bytes=_total(devices),
        devices=devices,
    )


def vram_ratio(gpu: GpuReading) -> float | None:
    """Return (used + reserved) / total; None where total or used is missing.

    Where the driver does not tell the reserved part apart, used includes it.
    """
    total, used = gpu.memory_total_bytes.number, gpu.memory_used_bytes.number
    if not total or used is None:
        return None
    return min(1.0, (used + (gpu.memory_reserved_bytes.number or 0.0)) / total)


def _missing(uuid: str, snapshot: GpuSnapshot) -> GpuReading:
    """Stand in for a GPU that the snapshot does not have: gone if the driver was read, else unknown."""
    if snapshot.driver is not DriverState.OK:
        return GpuReading(uuid=uuid, index=0)
    return GpuReading(uuid=uuid, index=0, health=GpuHealth.LOST, detail="not on this host")


def _detail(devices: Sequence[GpuReading], worst: GpuReading, snapshot: GpuSnapshot) -> str:
    if worst.health is GpuHealth.OK:
        return ""
    why = worst.detail or snapshot.detail
    return f"{worst.uuid}: {why}" if len(devices) > 1 and worst.detail else why


def _memory_kind(devices: Sequence[GpuReading]) -> MemoryKind:
    """Dedicated if any is: its numbers then are those of the dedicated ones."""
    kinds = {gpu.memory_kind for gpu in devices}
    order = (MemoryKind.DEDICATED, MemoryKind.COHERENT, MemoryKind.UNIFIED)
    return next((kind for kind in order if kind in kinds), MemoryKind.UNKNOWN)


def _total(devices: Sequence[GpuReading]) -> int | None:
    totals = {
        _memory_of(gpu): total
        for gpu in devices
        if (total := gpu.memory_total_bytes.number) is not None
    }
    return int(sum(totals.values())) if totals else None


def _memory_of(gpu: GpuReading) -> object:
    """Name the memory that a device uses: MIG compute instances of a GPU instance share it."""
    if gpu.parent_uuid and gpu.gpu_instance_id is not None:
        return gpu.parent_uuid, gpu.gpu_instance_id
    return gpu.uuid


class _Places:
    """Which memory each UUID stands for, whether it is there at the moment or not."""

    def __init__(self, gpus: Iterable[GpuReading]) -> None:
        self._memories = {gpu.uuid: _memory_of(gpu) for gpu in gpus}

    def memory(self, uuid: str) -> object:
        """Return the memory of a GPU as configured."""
        canonical = canonical_uuid(uuid)
        return self._memories.get(canonical, canonical)
