"""The GPU memory that a simulated engine occupies, told to the NVML stub."""

from __future__ import annotations

from pathlib import Path

from demo.exposition import GPU_MEMORY_UTILIZATION
from demo.nvmlstub import StubState

TOTAL_BYTES = 80 * 1024**3
RESERVED_BYTES = 512 * 1024**2
"""About what the driver keeps for itself on a card of this size."""


class GpuMemory:
    """GPU 0 of one state file."""

    def __init__(self, state: Path) -> None:
        self._state = StubState(state)
        self._state.gpu(
            0,
            uuid=uuid_of(state),
            name="NVIDIA Stub 80GB",
            total=TOTAL_BYTES,
            reserved=RESERVED_BYTES,
            used=0,
        )

    def loaded(self) -> None:
        """Tell that the engine holds what vLLM reserves by default."""
        self._state.gpu(0, used=int(TOTAL_BYTES * GPU_MEMORY_UTILIZATION) - RESERVED_BYTES)

    def empty(self) -> None:
        """Tell that the engine is gone, and its memory with it."""
        self._state.gpu(0, used=0)


def uuid_of(state: Path) -> str:
    """Return the identity of the GPU in a state file: it follows from the file's name."""
    return f"GPU-{state.stem}"
