"""How parts of the limits get from one proxy to another: what is given was let go before.

A proxy that is told of a smaller part goes on with the larger one until it has accepted that. Who is to have more waits for it, so
that all together never admit more than there is, however slow one of them is. A proxy that accepts nothing for long is waited
for no longer: it is broken, and others have work to do.

Time is an argument, in seconds; there is no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

ROUNDING = 1e-9


class _Excess(NamedTuple):
    """What a proxy may still admit beside the part that it is served."""

    part: float
    until: float


class Handover:
    """The parts that proxies are served on the way to those that they shall have; changes in place."""

    def __init__(self, parts: Mapping[str, float]) -> None:
        """Begin with the parts that proxies have, by node id."""
        self.served: dict[str, float] = dict(parts)
        """Part of every limit by proxy, above 0."""
        self.is_done = True
        """Whether everybody is served what it shall have."""
        self._excess: dict[str, _Excess] = {}

    def update(
        self,
        wanted: Mapping[str, float],
        *,
        accepted: Collection[str],
        patience_s: float,
        now: float,
    ) -> bool:
        """Come closer to the parts that proxies shall have; return whether one that is served changed.

        Args:
            wanted: Part by node id; who is not there has none any more.
            accepted: Node ids of proxies that have accepted all that they were served.
            patience_s: How long a proxy may take for that before others are given what it should have let go.
            now: Seconds, of a clock that never goes back.
        """
        before = dict(self.served)
        self._let_go(wanted, accepted, now)
        for name, part in wanted.items():
            has = self.served.get(name, 0.0)
            if part < has:
                most = self._most(name)
                self.served[name] = part
                if patience_s > 0:
                    self._excess[name] = _Excess(most, now + patience_s)
        self._give(wanted)
        return self.served != before

    def _most(self, name: str) -> float:
        """Return what a proxy may admit, whatever it has accepted."""
        excess = self._excess.get(name)
        served = self.served.get(name, 0.0)
        return served if excess is None else max(served, excess.part)

    def _let_go(self, wanted: Mapping[str, float], accepted: Collection[str], now: float) -> None:
        for name in self.served.keys() - wanted.keys():
            del self.served[name]
            self._excess.pop(name, None)
        for name in [
            each for each, excess in self._excess.items() if each in accepted or now >= excess.until
        ]:
            del self._excess[name]

    def _give(self, wanted: Mapping[str, float]) -> None:
        """Give as many as possible the whole of what they shall have: every change refills a bucket."""
        more = [name for name, part in wanted.items() if part > self.served.get(name, 0.0)]
        self.is_done = True
        if not more:
            return
        most = sum(self.served.values())
        most += sum(self._most(name) - self.served[name] for name in self._excess)
        room = max(1.0, sum(wanted.values())) - most + ROUNDING
        for name in sorted(more, key=lambda each: self.served.get(each, 0.0)):
            needed = max(0.0, wanted[name] - self._most(name))
            if needed <= room:
                room -= needed
                self.served[name] = wanted[name]
            else:
                self.is_done = False
