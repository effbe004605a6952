"""What a source of GPU readings is, and the one for hosts without GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from sidecar_agent.gpu.facts import DriverState, GpuHealth, GpuReading, GpuSnapshot
from sidecar_agent.gpu.health import BROKEN


class GpuReader(Protocol):
    """Reads this host's GPUs.

    All calls come from one thread (see `worker.GpuWorker`) and may block for as long as the driver does.
    """

    def open(self) -> None:
        """Make ready to read. A driver that is missing or broken is no error: `read` tells it."""
        ...

    def read(self) -> GpuSnapshot:
        """Read every GPU once; never an older value in place of one that could not be read."""
        ...

    def close(self) -> None:
        """Let go of the driver. `open` may follow."""
        ...


class NoGpuReader:
    """For `gpu: none`: engine facts flow alone. Missing is neither zero nor bad."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def open(self) -> None:
        """Do nothing."""

    def read(self) -> GpuSnapshot:
        """Say that no GPU is read here."""
        return GpuSnapshot(
            driver=DriverState.ABSENT, detail="GPU reading is switched off", read_at=self._clock()
        )

    def close(self) -> None:
        """Do nothing."""


def faded(snapshot: GpuSnapshot, *, driver: DriverState, detail: str) -> GpuSnapshot:
    """Return a snapshot in which the driver cannot be read: identities stay, numbers go.

    A GPU that was broken stays so, everything else is unknown.
    """
    return replace(
        snapshot, driver=driver, detail=detail, gpus=tuple(faded_gpu(gpu) for gpu in snapshot.gpus)
    )


def faded_gpu(gpu: GpuReading, *, detail: str = "") -> GpuReading:
    """Return a reading without its numbers."""
    broken = gpu.health in BROKEN
    return GpuReading(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        parent_uuid=gpu.parent_uuid,
        gpu_instance_id=gpu.gpu_instance_id,
        health=gpu.health if broken else GpuHealth.UNKNOWN,
        detail=gpu.detail if broken else detail,
        memory_kind=gpu.memory_kind,
    )
