"""Whether a model's weights arrive, and how long they take. Pure: time is an argument.

Weights may follow each other faster than istiod passes them on, so some never arrive; what counts is that the
newest does, and how old the oldest is that was neither seen nor overtaken by one that was.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from xds_server.istio.probe.seen import Seen, difference
from xds_server.istio.weights import ModelWeights

MOST_WAITING = 64
"""Weights of one model that are remembered while none arrives; the oldest one's time is kept whatever happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    weights: ModelWeights
    since: float
    is_timed: bool
    """Sidecars were watched all the time since then."""
    pushed_at: float | None = None


class Follow:
    """One model."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        """What sidecars have; None also before the first look."""
        self._is_looked = False
        self._waiting: deque[_Wanted] = deque(maxlen=MOST_WAITING)
        self._newest: ModelWeights | None = None
        self._since: float | None = None

    @property
    def newest(self) -> ModelWeights | None:
        """What is wanted now."""
        return self._newest

    def want(self, weights: ModelWeights, now: float) -> None:
        """Take what is wanted from now on; the same again changes nothing."""
        if weights == self._newest:
            return
        self._newest = weights
        self._waiting.append(_Wanted(weights=weights, since=now, is_timed=self._is_looked))
        if self._since is None:
            self._since = now
        if self._is_looked and difference(weights, self.seen) is None:
            self._arrived()

    def pushed(self, weights: ModelWeights, now: float) -> None:
        """Note that the mesh was told these weights: their time counts from here."""
        for index, each in enumerate(self._waiting):
            if each.weights == weights and each.pushed_at is None:
                self._waiting[index] = replace(each, pushed_at=now)

    def look(self, seen: Seen | None, now: float) -> float | None:
        """Take what sidecars have now.

        Returns:
            Seconds since the newest weights that are met by it were pushed; None if they were met before, or if
            nobody watched all that time.
        """
        self.seen, self._is_looked = seen, True
        for index in reversed(range(len(self._waiting))):
            each = self._waiting[index]
            if difference(each.weights, seen) is not None:
                continue
            later = [self._waiting[at] for at in range(index + 1, len(self._waiting))]
            self._waiting = deque(later, maxlen=MOST_WAITING)
            self._since = later[0].since if later else None
            if not each.is_timed:
                return None
            return max(0.0, now - (each.since if each.pushed_at is None else each.pushed_at))
        if self._newest is not None and not self._waiting and difference(self._newest, seen):
            # They were there and are gone: somebody else changed the mesh.
            self._waiting.append(_Wanted(weights=self._newest, since=now, is_timed=False))
            self._since = now
        return None

    def blind(self) -> None:
        """Forget what sidecars have: the connection is lost, and nobody knows."""
        self.seen, self._is_looked = None, False
        for index, each in enumerate(self._waiting):
            self._waiting[index] = replace(each, is_timed=False)

    def unapplied_s(self, now: float) -> float | None:
        """Return for how long sidecars have not had what is wanted; None while nobody knows."""
        if not self._is_looked or self._newest is None:
            return None
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def _arrived(self) -> None:
        self._waiting.clear()
        self._since = None
