"""Which streams ended lately, and by whom: what still comes of them is late, or wrong."""

from __future__ import annotations

from enum import Enum, auto

REMEMBERED = 500
"""At least so many, and twice as many at most: they are forgotten together, not one by one."""


class End(Enum):
    """Why no more may come of a stream."""

    HERE = auto()
    """It was ended from here; what comes was sent before the client knew."""
    CLIENT = auto()
    """The client itself said that nothing more would come."""
    UNKNOWN = auto()
    """It ended long ago, or never began."""


class Ended:
    """Remembers the streams that ended last."""

    def __init__(self) -> None:
        self._young: dict[int, bool] = {}
        """Number -> whether the client ended it."""
        self._old: dict[int, bool] = {}

    def add(self, number: int, *, by_client: bool) -> None:
        """Remember a stream, for a while."""
        if len(self._young) >= REMEMBERED:
            self._young, self._old = {}, self._young
        self._young[number] = by_client

    def how(self, number: int) -> End:
        """Return how a stream ended."""
        by_client = self._young.get(number)
        if by_client is None:
            by_client = self._old.get(number)
        if by_client is None:
            return End.UNKNOWN
        return End.CLIENT if by_client else End.HERE
