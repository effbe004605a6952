"""Which part of the fleet's limits each proxy may admit.

Limits are the fleet's, buckets are the proxies'. At first all proxies have equal parts; once it is known what each is
asked for, parts follow that. A proxy whose bucket changes starts with a full one, so every change of a part gives
away up to `burst_s` of it: what is changed in `divisions_every_s` is at most `divisions` times the whole, and small moves
change nothing. With the defaults what is admitted in 30 s stays within 5 % of a limit.

    a proxy comes    it gets a little at once, from a reserve; a moment later all are divided anew
    more come        while the last division is no older than `divisions_every_s`, each is given half of somebody's part, or what
                     is nobody's: one bucket is refilled for that, and not all
    a proxy goes     its part is kept for it while it may still serve without us; then all are divided anew
    load shifts      parts follow when one is off by more than `shift_ratio`

Time is an argument, in seconds; there is no I/O.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Mapping

from xds_server.core.policy import AdmissionPolicy

RESERVE = 0.01
"""The most that proxies which came and wait for a part of their own get on top of the limits, together."""
SETTLE_LIMIT = 3.0
"""Proxies that keep coming put a division off for at most this many times `settle_s`."""
UNITS = 20
"""Parts are whole multiples of a twentieth of an equal part: proxies with about the same load share a configuration."""
ROUNDING = 1e-9
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
        self._newcomers: dict[str, None] = {}
        """Those that have a little and wait for more, the first first."""
        self._come = 0
        """How many came since the last division."""
        self._changed_first: float | None = None
        self._changed_last = 0.0
        self._divided_at: float | None = None
        self._changes: deque[tuple[float, float]] = deque()
        """When parts were changed, and how much of the whole they are: buckets that were refilled."""
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
        self._divided_at = now
        self._changes.append((now, 1.0))

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
        due = self._settled_at(now)
        if due is not None and due <= now:
            due = self._hand_out(now)
        expiries = [at + self.policy.absent_s for at in self._left.values()]
        self.deadline = min([each for each in (due, *expiries) if each is not None], default=None)
        return self.parts != before

    def _come_and_go(self, connected: set[str], now: float) -> None:
        changed = False
        for name in sorted(connected - self._present.keys()):
            self._present[name] = None
            changed = True
            if self._divided_at is not None:
                self._give_a_little(name)
        for name in connected & self._left.keys():
            del self._left[name]
        for name in self._present.keys() - connected:
            self._left.setdefault(name, now)
        for name in [each for each, at in self._left.items() if now >= at + self.policy.absent_s]:
            self._forget(name)
            changed = True
        if changed:
            self._changed_last = now
            if self._changed_first is None:
                self._changed_first = now

    def _forget(self, name: str) -> None:
        self._left.pop(name, None)
        self._present.pop(name, None)
        self._newcomers.pop(name, None)
        self.parts.pop(name, None)
        self._demand.pop(name, None)

    def _give_a_little(self, name: str) -> None:
        # 1/2 + 1/6 + 1/12 + ... is never more than 1, however many come; halves of what is left would soon be
        # too small for a float to tell from nothing.
        self._come += 1
        self.parts[name] = min(1 / len(self._present), RESERVE / (self._come * (self._come + 1)))
        self._newcomers[name] = None

    def _settled_at(self, now: float) -> float | None:
        """Return when those who come and go are waited for no longer; None when there is no reason to change a part."""
        if not self._present:
            self._changed_first = None  # Whoever comes next is not late for what happened before.
            return None
        if self._changed_first is not None:
            return min(
                self._changed_last + self.policy.settle_s,
                self._changed_first + SETTLE_LIMIT * self.policy.settle_s,
            )
        return now if self._demand and self._is_shifted() else None

    def _hand_out(self, now: float) -> float | None:
        """Divide anew, or do what can be done before that; return when there is more to do."""
        targets = self._targets()
        changed = sum(part for name, part in targets.items() if self.parts.get(name) != part)
        divides_at = self._affordable_at(changed, now)
        if changed and self._come and self._divided_at is not None and self.policy.divisions > 1:
            # What may still be changed is enough for many newcomers, or for one division.
            divides_at = max(divides_at, self._divided_at + self.policy.divisions_every_s)
        if divides_at <= now:
            self._divide(targets, changed, now)
            return None
        slices_at = self._slice(targets, now)
        return divides_at if slices_at is None else min(divides_at, slices_at)

    def _affordable_at(self, part: float, now: float) -> float:
        """Return when so much of the whole may be changed, now or later."""
        while self._changes and self._changes[0][0] <= now - self.policy.divisions_every_s:
            self._changes.popleft()
        at, spent = now, sum(changed for _, changed in self._changes)
        for then, changed in self._changes:
            if spent + part <= self.policy.divisions + ROUNDING:
                break
            at, spent = then + self.policy.divisions_every_s, spent - changed
        return at

    def _slice(self, targets: Mapping[str, float], now: float) -> float | None:
        """Give newcomers parts of their own, the first first; return when the next one's turn is, if any is left.

        Each gets what nobody has, or up to half of the part of who has most too much.
        """
        old = {name: part for name, part in self.parts.items() if name not in self._newcomers}
        spare, changed = 1 - sum(old.values()), 0.0
        givers = [
            (targets[name] - part, name) for name, part in old.items() if name not in self._left
        ]
        heapq.heapify(givers)
        at: float | None = None
        for name in [each for each in self._newcomers if each not in self._left]:
            if spare >= targets[name] / 2:
                giver, given = None, min(targets[name], spare)
                spare -= given
                changes = given
            elif givers:
                giver = givers[0][1]
                given, changes = min(targets[name], self.parts[giver] / 2), self.parts[giver]
            else:
                break
            at = self._affordable_at(changed + changes, now)
            if at > now:
                break
            at, changed = None, changed + changes
            self.parts[name] = given
            del self._newcomers[name]
            if giver is not None:
                self.parts[giver] -= given
                heapq.heapreplace(givers, (targets[giver] - self.parts[giver], giver))
            heapq.heappush(givers, (targets[name] - given, name))
        if changed:
            self._changes.append((now, changed))
        return at

    def _is_shifted(self) -> bool:
        targets = self._targets()
        return any(
            abs(target - self.parts[name]) > self.policy.shift_ratio * self.parts[name]
            for name, target in targets.items()
        )

    def _divide(self, targets: dict[str, float], changed: float, now: float) -> None:
        self._changed_first = None
        self._newcomers.clear()
        self._come = 0
        if targets != self.parts:
            self.parts = targets
            self._divided_at = now
            self._changes.append((now, changed))

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
