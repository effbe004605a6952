"""A GPU reader that says what a test puts there; the worker around it is the real one."""

from __future__ import annotations

from sidecar_agent.gpu.facts import GpuSnapshot
from sidecar_agent.gpu.worker import GpuWorker


class ScriptedGpus:
    """Reads `snapshots` one after the other and stays at the last."""

    def __init__(self, *snapshots: GpuSnapshot) -> None:
        self.snapshots = list(snapshots)
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def read(self) -> GpuSnapshot:
        return self.snapshots.pop(0) if len(self.snapshots) > 1 else self.snapshots[0]

    def close(self) -> None:
        self.is_open = False


def scripted(*snapshots: GpuSnapshot) -> tuple[GpuWorker, ScriptedGpus]:
    """Return a worker, not yet started, and the reader it reads."""
    reader = ScriptedGpus(*snapshots)
    return GpuWorker(reader, interval_s=0.02), reader
