"""Time as an argument."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Monotonic seconds: `time.monotonic` in the process, a `ManualClock` in tests."""


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Move on and return the new time."""
        self.now += seconds
        return self.now
