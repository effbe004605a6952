"""What clients ask of a simulated fleet: when requests come, and how long they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A quantity over time as straight lines between points; constant outside of them."""

    points: tuple[tuple[float, float], ...]
    """(seconds, value), by time; two points at the same time make a step."""

    @classmethod
    def steps(cls, *steps: tuple[float, float]) -> Profile:
        """Return a profile that jumps to each value at its time."""
        points: list[tuple[float, float]] = []
        for at, value in steps:
            if points:
                points.append((at, points[-1][1]))
            points.append((at, value))
        return cls(points=tuple(points))

    def at(self, now: float) -> float:
        """Return the value at `now`; at a step, the value after it."""
        index = bisect_right(self.points, now, key=_time)
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (start, before), (end, after) = self.points[index - 1], self.points[index]
        return before + (after - before) * (now - start) / (end - start)

    @property
    def peak(self) -> float:
        """The largest value it ever has."""
        return max(value for _, value in self.points)


def _time(point: tuple[float, float]) -> float:
    return point[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A lognormal distribution given by its mean; chat lengths have a sigma near 0.6."""

    mean: float
    sigma: float

    def draw(self, random: Random) -> float:
        """Return one value."""
        return random.lognormvariate(log(self.mean) - self.sigma**2 / 2.0, self.sigma)

    @property
    def length_biased_mean(self) -> float:
        """Mean as seen by an observer who meets long values more often: E[x^2] / E[x]."""
        return self.mean * exp(self.sigma**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long prompts and answers are, in tokens."""

    prompt: Lognormal = Lognormal(mean=500.0, sigma=0.8)
    output: Lognormal = Lognormal(mean=200.0, sigma=0.6)


CHAT = Lengths()
"""Short prompts and answers of a chat."""


@dataclass(slots=True)
class Request:
    """One request on its way through the fleet."""

    arrived_at: float
    prompt: float
    output: float
    tier: int = -1
    started_at: float | None = None
    """When its first token was computed for; None while it only waited."""
    attempt: int = 0
    """Distinguishes the runs of a request that was preempted."""
    run_started_at: float = 0.0
    tokens_per_s: float = 0.0


def arrivals(*, rate: Profile, lengths: Lengths, until: float, random: Random) -> Iterator[Request]:
    """Yield a Poisson stream of requests.

    Args:
        rate: Requests/s over time.
        lengths: Their sizes.
        until: Seconds at which the stream ends.
        random: Source of all randomness; equal seeds give equal streams.

    Yields:
        Requests by time of arrival.
    """
    peak = rate.peak
    now = random.expovariate(peak)
    while now < until:
        # Thinning: candidates at the peak rate, each kept with the share that is due at its time.
        if random.random() * peak < rate.at(now):
            yield Request(
                arrived_at=now,
                prompt=lengths.prompt.draw(random),
                output=lengths.output.draw(random),
            )
        now += random.expovariate(peak)
