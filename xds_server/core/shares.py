"""Which part of the fleet's limits each proxy may admit.

Limits are the fleet's, buckets are the proxies'. At first all proxies have equal parts; once it is known what each is
asked for, parts follow that. A proxy whose bucket changes starts with a full one, so every division gives
away up to `burst_s` of the limits: divisions are few (`divisions` in `divisions_every_s`), and small moves cause none.
With the defaults what is admitted in 30 s stays within 5 % of a limit.

    a proxy comes    it gets a little at once, from a reserve; a moment later all are divided anew
    a proxy goes     its part is kept for it while it may still serve without us; then all are divided anew
    load shifts      parts follow when one is off by more than `shift_ratio`

Time is an argument, in seconds; there is no I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping

from xds_server.core.policy import AdmissionPolicy

RESERVE = 0.01
"""The most that proxies which came since the last division get on top of it, together: the next division may be half
a minute away."""
SETTLE_LIMIT = 3.0
"""Proxies that keep coming put a division off for at most this many times `settle_s`."""
UNITS = 20
"""Parts are whole multiples of a twentieth of an equal part: proxies with about the same load share a configuration."""
SMOOTHING_S = 10.0
"""Time constant of what each proxy is asked for."""


class Shares:
    """The division as it is; changes in place."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self.parts: dict[str, float] = {}
        """Part of every limit by proxy, above 0. A connected proxy that is not here waits for the first division."""
        self.deadline: float | None = None
        """When `update` has to be called even if nobody comes or goes."""
        self._left: dict[str, float] = {}
        self._present: dict[str, None] = {}
        self._provisional: set[str] = set()
        self._changed_first: float | None = None
        self._changed_last = 0.0
        self._divided: deque[float] = deque()
        """When it was divided lately; what is too long ago to count is forgotten."""
        self._has_divided = False
        self._demand: dict[str, float] = {}
        self._demand_at = 0.0

    def adopt(self, parts: Mapping[str, float], now: float) -> None:
        """Continue with the parts of an earlier run: proxies that still have them shall notice nothing.

        Those that do not come back keep theirs for `absent_s`. Parts that can be none are not taken over.
        """
        valid = all(0.0 < part <= 1.0 for part in parts.values())
        if not parts or not valid or sum(parts.values()) > 1 + RESERVE + 1e-6:
            return
        self.parts = dict(parts)
        self._present = dict.fromkeys(parts)
        self._left = dict.fromkeys(parts, now)
        self._note_division(now)

    def update(self, connected: Collection[str], demand: Mapping[str, float], now: float) -> bool:
        """Take in who is there and what each is asked for; return whether a part changed.

        Args:
            connected: Ids of the proxies that are connected now.
            demand: Requests/s by proxy, as far as it is known.
            now: Seconds, of a clock that never goes back.
        """
        before = dict(self.parts)
        self._take_demand(demand, now)
        self._come_and_go(set(connected), now)
        due = self._due(now)
        if due is not None and due <= now:
            self._divide(now)
            due = None
        expiries = [at + self.policy.absent_s for at in self._left.values()]
        self.deadline = min([each for each in (due, *expiries) if each is not None], default=None)
        return self.parts != before

    def _come_and_go(self, connected: set[str], now: float) -> None:
        changed = False
        for name in sorted(connected - self._present.keys()):
            self._present[name] = None
            changed = True
            if self._has_divided:
                self._give_a_little(name)
        for name in connected & self._left.keys():
            del self._left[name]
        for name in self._present.keys() - connected:
            self._left.setdefault(name, now)
        for name in [each for each, at in self._left.items() if now >= at + self.policy.absent_s]:
            for remembered in (self._left, self._present, self.parts, self._demand):
                remembered.pop(name, None)
            self._provisional.discard(name)
            changed = True
        if changed:
            self._changed_last = now
            if self._changed_first is None:
                self._changed_first = now

    def _give_a_little(self, name: str) -> None:
        # 1/2 + 1/6 + 1/12 + ... is never more than 1, however many come; halves of what is left would soon be
        # too small for a float to tell from nothing.
        number = len(self._provisional) + 1
        self.parts[name] = min(1 / len(self._present), RESERVE / (number * (number + 1)))
        self._provisional.add(name)

    def _due(self, now: float) -> float | None:
        """Return when to divide anew; None when there is no reason to."""
        if not self._present:
            self._changed_first = None  # Whoever comes next is not late for what happened before.
            return None
        if self._changed_first is not None:
            due = min(
                self._changed_last + self.policy.settle_s,
                self._changed_first + SETTLE_LIMIT * self.policy.settle_s,
            )
        elif self._demand and self._is_shifted():
            due = now
        else:
            return None
        while self._divided and self._divided[0] <= now - self.policy.divisions_every_s:
            self._divided.popleft()
        if len(self._divided) >= self.policy.divisions:
            due = max(due, self._divided[-self.policy.divisions] + self.policy.divisions_every_s)
        return due

    def _is_shifted(self) -> bool:
        targets = self._targets()
        return any(
            abs(target - self.parts[name]) > self.policy.shift_ratio * self.parts[name]
            for name, target in targets.items()
        )

    def _divide(self, now: float) -> None:
        targets = self._targets()
        self._changed_first = None
        self._provisional.clear()
        if targets != self.parts:
            self.parts = targets
            self._note_division(now)

    def _note_division(self, now: float) -> None:
        self._divided.append(now)
        self._has_divided = True

    def _targets(self) -> dict[str, float]:
        """Return the parts that fit what each proxy is asked for; they add up to 1."""
        names = sorted(self._present)
        count = len(names)
        known = [self._demand[name] for name in names if name in self._demand]
        if not known or sum(known) <= 0:
            return dict.fromkeys(names, 1 / count)
        mean = sum(known) / len(known)
        wanted = [self._demand.get(name, mean) for name in names]
        least = math.ceil(UNITS * self.policy.least_ratio)
        spare = (UNITS - least) * count
        exact = [spare * each / sum(wanted) for each in wanted]
        units = [least + math.floor(each) for each in exact]
        by_remainder = sorted(range(count), key=lambda i: (math.floor(exact[i]) - exact[i], i))
        for index in by_remainder[: UNITS * count - sum(units)]:
            units[index] += 1
        return {name: each / (UNITS * count) for name, each in zip(names, units, strict=True)}

    def _take_demand(self, demand: Mapping[str, float], now: float) -> None:
        weight = 1 - math.exp(-(now - self._demand_at) / SMOOTHING_S)
        self._demand_at = now
        for name in self._present.keys() & demand.keys():
            old = self._demand.get(name)
            self._demand[name] = (
                demand[name] if old is None else old + weight * (demand[name] - old)
            )
