"""What became of the requests of one model and class: sliding counts and the ratios that follow.

Objects change in place, as in `evidence.py`: time is an argument, and there is no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from xds_server.core.slices import Slices

SLOTS = 12
"""Slices of the window: it is right to a twelfth of its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Shares of the requests that were answered in the window; None without any request."""

    requests: int
    degraded: float | None
    """Answered by a lower tier, the static one included."""
    static: Mapping[str, float]
    """Answered statically, by template; empty without any request."""
    amplification: float | None
    """Attempts at engines per request that was admitted."""
    tokens_per_second: float = 0.0
    """What the admitted requests might cost, where that is counted."""


@dataclass(slots=True)
class _Slot:
    until: float
    requests: int = 0
    degraded: int = 0
    attempts: int = 0
    tokens: float = 0.0
    static: Counter[str] = field(default_factory=Counter)


class RequestWindow:
    """Requests that ended within the last `span_s`; memory is bounded by its slots and the templates."""

    def __init__(self, span_s: float) -> None:
        self._slots = Slices(span_s, SLOTS, _Slot)

    def add(
        self,
        now: float,
        *,
        degraded: bool,
        template: str | None,
        tokens: float = 0.0,
    ) -> None:
        """Count a request that ended now.

        Args:
            now: Seconds; may not move backward by more than it matters.
            degraded: Whether a lower tier answered.
            template: Which static answer it was; None when it was not static.
            tokens: What it might cost; 0 where that is not counted.
        """
        slot = self._slots.at(now)
        slot.requests += 1
        slot.tokens += tokens
        if degraded:
            slot.degraded += 1
        if template is not None:
            slot.static[template] += 1

    def attempt(self, now: float) -> None:
        """Count an attempt at an engine that ended now, of whatever request."""
        self._slots.at(now).attempts += 1

    def ratios(self, now: float) -> Ratios:
        """Return the shares of the window."""
        self._slots.forget(now)
        requests = sum(slot.requests for slot in self._slots)
        static: Counter[str] = Counter()
        for slot in self._slots:
            static.update(slot.static)
        if not requests:
            return Ratios(requests=0, degraded=None, static={}, amplification=None)
        return Ratios(
            requests=requests,
            degraded=sum(slot.degraded for slot in self._slots) / requests,
            static={name: count / requests for name, count in sorted(static.items())},
            amplification=sum(slot.attempts for slot in self._slots) / requests,
            tokens_per_second=sum(slot.tokens for slot in self._slots) / self._slots.spanned_s(now),
        )
