"""How much of what proxies log is read: a token bucket that all streams share (pure)."""

from __future__ import annotations

from xds_server.clock import Clock


class Budget:
    """Entries per second, with a burst of one second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed = 0.0
        self._at = clock()

    def spend(self, entries: int, *, per_s: float) -> float:
        """Take entries that were read, and return how long to wait before reading more, in seconds."""
        now = self._clock()
        self._owed = max(0.0, self._owed - (now - self._at) * per_s) + entries
        self._at = now
        return max(0.0, self._owed / per_s - 1.0)
