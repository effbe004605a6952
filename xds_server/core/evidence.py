"""What proxies saw of the requests to one endpoint or tier: windows, percentiles and failure accrual.

Entries come by the thousand per second, so these objects change in place; they do no I/O, have no clock
(time is an argument) and give the same answers for the same calls.

What is a failure is decided here, once: an answer of 429 or 503 that an engine gave by itself says "not
now" (vLLM's queue limit answers 503) and a client that leaves says nothing about the engine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from math import ceil, inf
from typing import NamedTuple

from xds_server.core.policy import EvidencePolicy
from xds_server.core.slices import Slices


class Outcome(StrEnum):
    """How one attempt at one endpoint ended."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """A 4xx other than 429: the engine did its work."""
    REJECTED = "rejected"
    """A 429 or 503 of the engine itself: back-pressure."""
    ABORTED = "aborted"
    """The client left."""
    ERROR = "error"
    """A 5xx of the engine other than 503."""
    TIMEOUT = "timeout"
    """No headers in time."""
    CONNECT = "connect"
    """No connection."""
    RESET = "reset"
    """Cut before the headers came."""
    BROKEN = "broken"
    """A stream that was cut or fell silent after a good status."""


FAILURES = frozenset(
    {Outcome.ERROR, Outcome.TIMEOUT, Outcome.CONNECT, Outcome.RESET, Outcome.BROKEN}
)
"""What speaks against an endpoint."""

_ABORTS = frozenset(
    {"downstream_connection_termination", "downstream_remote_reset", "downstream_protocol_error"}
)
_TIMEOUTS = frozenset(
    {
        "upstream_request_timeout",
        "stream_idle_timeout",
        "upstream_max_stream_duration_reached",
        "duration_timeout",
    }
)
_CUTS = frozenset(
    {
        "upstream_connection_termination",
        "upstream_remote_reset",
        "local_reset",
        "upstream_protocol_error",
    }
)


def outcome(status: int, flags: Collection[str]) -> Outcome:
    """Say how an attempt ended.

    Args:
        status: The status that the endpoint answered; 0 when it answered none.
        flags: Names of Envoy's response flags, as in `envoy.data.accesslog.v3.ResponseFlags`.
    """
    if flags:
        if not _ABORTS.isdisjoint(flags):
            return Outcome.ABORTED
        if "upstream_connection_failure" in flags:
            return Outcome.CONNECT
        has_headers = 200 <= status < 300
        if not _TIMEOUTS.isdisjoint(flags):
            return Outcome.BROKEN if has_headers else Outcome.TIMEOUT
        if not _CUTS.isdisjoint(flags):
            return Outcome.BROKEN if has_headers else Outcome.RESET
    if status < 400:
        return Outcome.OK if status else Outcome.RESET
    if status in (429, 503):
        return Outcome.REJECTED
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.ERROR


# Percentiles: buckets whose bounds grow by 5 %, so a percentile is off by at most 2.5 %.

GROWTH = 1.05
_LEAST_S = 0.0005
_BOUNDS = [_LEAST_S * GROWTH**number for number in range(310)]
"""0.5 ms to half an hour."""


def bucket(seconds: float) -> int:
    """Return the number of the bucket that a time falls into."""
    return bisect_right(_BOUNDS, seconds)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return a percentile of bucketed times.

    Args:
        counts: Times per bucket.
        share: 0.5 for the median.

    Returns:
        Seconds, the geometric middle of the bucket; None without any time.
    """
    total = sum(counts.values())
    if not total:
        return None
    rank = max(1, ceil(share * total))
    order = sorted(counts)
    running = accumulate(counts[number] for number in order)
    number = next(each for each, seen in zip(order, running, strict=True) if seen >= rank)
    upper = _LEAST_S * GROWTH ** min(number, len(_BOUNDS))
    return float(upper / GROWTH**0.5)


class Times(NamedTuple):
    """Percentiles in seconds; None without any time."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Times:
        """Return the percentiles of bucketed times."""
        return cls(*(percentile(counts, share) for share in (0.50, 0.95, 0.99)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a window holds."""

    outcomes: Mapping[Outcome, int]
    latency: Times
    """Of whole answers, from the attempt's start."""
    first_byte: Times
    """Of the first byte of an answer: for a stream the time to its headers."""

    @property
    def attempts(self) -> int:
        """Attempts that ended in the window."""
        return sum(self.outcomes.values())

    @property
    def failures(self) -> int:
        """Attempts that speak against the endpoint."""
        return sum(self.outcomes.get(each, 0) for each in FAILURES)


@dataclass(slots=True)
class _Slot:
    """What fell into one slice of a window."""

    until: float
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    latency: Counter[int] = field(default_factory=Counter)
    first_byte: Counter[int] = field(default_factory=Counter)


SLOTS = 10
"""Slices of a window: it is right to a tenth of its length."""


class Window:
    """Attempts that ended within the last `span_s`; memory is bounded by its slots and buckets."""

    def __init__(self, span_s: float) -> None:
        self._slots = Slices(span_s, SLOTS, _Slot)

    def add(
        self,
        now: float,
        ended: Outcome,
        *,
        latency_s: float | None = None,
        first_byte_s: float | None = None,
        count: int = 1,
    ) -> None:
        """Count attempts that ended now. Time that goes backward counts as no time."""
        slot = self._slots.at(now)
        slot.outcomes[ended] += count
        if latency_s is not None:
            slot.latency[bucket(latency_s)] += count
        if first_byte_s is not None:
            slot.first_byte[bucket(first_byte_s)] += count

    def counts(self, now: float) -> Counter[Outcome]:
        """Return how the window's attempts ended."""
        self._slots.forget(now)
        total: Counter[Outcome] = Counter()
        for slot in self._slots:
            total.update(slot.outcomes)
        return total

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()

    def summary(self, now: float) -> Summary:
        """Return what the window holds."""
        latency: Counter[int] = Counter()
        first_byte: Counter[int] = Counter()
        outcomes = self.counts(now)
        for slot in self._slots:
            latency.update(slot.latency)
            first_byte.update(slot.first_byte)
        return Summary(
            outcomes=dict(outcomes), latency=Times.of(latency), first_byte=Times.of(first_byte)
        )


class Verdict(NamedTuple):
    """Why an endpoint is to be taken out."""

    cause: str
    """`proxies_failures_in_row` or `proxies_failure_rate`."""
    detail: str
    """The kinds and numbers, for a person."""


IN_ROW = "proxies_failures_in_row"
RATE = "proxies_failure_rate"


class Accrual:
    """One endpoint's attempts over all proxies, and when its failures are enough."""

    def __init__(self, policy: EvidencePolicy, *, consecutive: int) -> None:
        self.window = Window(policy.window_s)
        self.last_ok = -inf
        """When it last answered well."""
        self.last_failure = -inf
        self._policy = policy
        self._consecutive = consecutive
        self._row: Counter[Outcome] = Counter()

    def add(
        self,
        now: float,
        ended: Outcome,
        *,
        latency_s: float | None = None,
        first_byte_s: float | None = None,
    ) -> Verdict | None:
        """Count an attempt, and say whether that makes it enough.

        Back-pressure, client errors and aborts neither add to a row of failures nor end one, but for a
        client error, which proves that the engine works.
        """
        self.window.add(now, ended, latency_s=latency_s, first_byte_s=first_byte_s)
        if ended in (Outcome.OK, Outcome.CLIENT_ERROR):
            self.last_ok = now
            if self._row:
                self._row.clear()
            return None
        if ended not in FAILURES:
            return None
        self.last_failure = now
        self._row[ended] += 1
        verdict = self._judge(now)
        if verdict is not None:
            # What led to this verdict must not lead to the next: after a ramp it starts from nothing.
            self._row.clear()
            self.window.clear()
        return verdict

    def _judge(self, now: float) -> Verdict | None:
        counts = self.window.counts(now)
        row = self._row.total()
        attempts = counts.total()
        needed = max(self._consecutive, ceil(self._policy.consecutive_ratio * attempts))
        if row >= needed:
            return Verdict(IN_ROW, f"{row} in a row: {_listed(self._row)}")
        failures = Counter({kind: n for kind, n in counts.items() if kind in FAILURES})
        # Back-pressure and aborts are no evidence either way.
        judged = failures.total() + counts[Outcome.OK] + counts[Outcome.CLIENT_ERROR]
        if judged < self._policy.minimum_attempts:
            return None
        if failures.total() >= self._policy.failure_ratio * judged:
            text = f"{failures.total()} of {judged} in {self._policy.window_s:g} s"
            return Verdict(RATE, f"{text}: {_listed(failures)}")
        return None


def _listed(kinds: Counter[Outcome]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
