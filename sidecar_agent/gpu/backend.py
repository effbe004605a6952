"""Choosing where GPU readings come from."""

from __future__ import annotations

from enum import StrEnum

from sidecar_agent.gpu.nvml import NvmlReader, NvmlSettings
from sidecar_agent.gpu.reader import NoGpuReader
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.gpu.xid import XidLedger, XidPolicy


class GpuBackend(StrEnum):
    """Ways to read GPUs."""

    NVML = "nvml"
    NONE = "none"


def make_worker(
    backend: GpuBackend,
    *,
    interval_s: float = 1.0,
    deadline_s: float = 2.0,
    xids: XidPolicy | None = None,
    settings: NvmlSettings | None = None,
) -> GpuWorker:
    """Make the worker for a backend; the caller starts and closes it.

    Args:
        backend: Where readings come from.
        interval_s: Pause between readings.
        deadline_s: A reading that takes longer is STALLED.
        xids: Which XIDs take a GPU out, and for how long.
        settings: How a driver that does not answer is tried again.

    Raises:
        WrongBindingsError: NVML was asked for and `pynvml` is not NVIDIA's.
    """
    if backend is GpuBackend.NONE:
        return GpuWorker(NoGpuReader(), interval_s=interval_s)
    ledger = XidLedger(xids)
    reader = NvmlReader(ledger=ledger, settings=settings)
    worker = GpuWorker(reader, ledger=ledger, interval_s=interval_s, deadline_s=deadline_s)
    reader.subscribe(worker.request)
    return worker
