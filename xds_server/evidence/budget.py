"""How much of what proxies log is read, and whether it is still news (pure).

One message costs 170 us on the machine where this was measured, however little is in it, and an entry
15 us: a thousand proxies that send five messages a second would need a whole core.
"""

from __future__ import annotations

from math import inf

from xds_server.clock import Clock

MESSAGE_ENTRIES = 10
"""What a message costs, in entries."""
STALE_S = 5.0
"""A stream that cannot be read as fast as it is written falls behind by up to its flow-control window,
64 KiB. What is later than this says how things were."""


class Budget:
    """A token bucket that all streams share, with a burst of one second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed = 0.0
        self._at = clock()

    def spend(self, entries: int, *, per_s: float) -> float:
        """Take a message that was read, and return how long to wait before the next, in seconds."""
        now = self._clock()
        self._owed = max(0.0, self._owed - (now - self._at) * per_s) + MESSAGE_ENTRIES + entries
        self._at = now
        return max(0.0, self._owed / per_s - 1.0)


class Lag:
    """How late the messages of one stream come, whatever the proxy's clock says.

    The least difference of both clocks that was seen stands for no delay.
    """

    def __init__(self) -> None:
        self._least = inf

    def is_stale(self, ended_unix_s: float | None, *, now_unix_s: float) -> bool:
        """Whether a message whose last entry ended then is too late to be evidence."""
        if ended_unix_s is None:
            return False
        behind = now_unix_s - ended_unix_s
        self._least = min(self._least, behind)
        return behind - self._least > STALE_S
