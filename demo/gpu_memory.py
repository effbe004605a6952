"""The GPU memory that a simulated engine occupies, told to the NVML stub through its state file."""

from __future__ import annotations

from pathlib import Path

from demo.exposition import GPU_MEMORY_UTILIZATION

TOTAL_BYTES = 80 * 1024**3
RESERVED_BYTES = 512 * 1024**2
"""What the driver keeps for itself on a card of this size."""


class GpuMemory:
    """GPU 0 of one state file."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def loaded(self) -> None:
        """The engine holds what vLLM reserves by default."""
        self._write(int(TOTAL_BYTES * GPU_MEMORY_UTILIZATION) - RESERVED_BYTES)

    def empty(self) -> None:
        """The engine is gone, and its memory with it."""
        self._write(0)

    def _write(self, used_bytes: int) -> None:
        lines = (
            "count 1",
            f"gpu0.uuid {uuid_of(self._state)}",
            f"gpu0.total {TOTAL_BYTES}",
            f"gpu0.reserved {RESERVED_BYTES}",
            f"gpu0.used {used_bytes}",
            "gpu0.util 50",
        )
        # The stub reads the file on every call: replace it in one step, never half.
        fresh = self._state.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self._state)


def uuid_of(state: Path) -> str:
    """Return the identity of the GPU in a state file: it follows from the file's name."""
    return f"GPU-{state.stem}"
