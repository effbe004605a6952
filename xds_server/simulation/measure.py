"""What a simulated run is judged by. Every measure looks at a window [start, end) in seconds.

*Ideal spill* is `1 - 0.95 / rho`, at least 0, where rho is the offered load in multiples of what the
tier can complete at that time: a tier at 95 % has no lasting queue, a fuller one has.
"""

from __future__ import annotations

from math import ceil
from statistics import fmean

from xds_server.simulation.fleet import TICK_S, Tick, Trace

FULL_RATIO = 0.95
"""Utilization that the ideal spill leads to (research: a queue grows above it)."""


SETTLED_OVER_S = 5.0
"""Span of the mean that `settled` looks at."""


def ideal_spill(rho: float) -> float:
    """Return the share that a tier must pass on at this load, in multiples of its capacity."""
    return max(0.0, 1.0 - FULL_RATIO / rho) if rho > 0.0 else 0.0


def ticks(trace: Trace, start: float, end: float) -> list[Tick]:
    """Return the observations in the window."""
    return [tick for tick in trace.ticks if start <= tick.at < end]


def utilization(trace: Trace, start: float, end: float) -> float:
    """Return the first tier's slot-seconds computed, as a share of those that its slots offered."""
    window = ticks(trace, start, end)
    first, last = window[0], window[-1]
    busy = sum(last.busy_slot_s[0]) - sum(first.busy_slot_s[0])
    slots = sum(spec.slots for spec in trace.spec.tiers[0])
    return busy / (slots * (last.at - first.at))


def served_elsewhere(trace: Trace, start: float, end: float) -> float:
    """Return the share of the requests that arrived in the window and left the first tier."""
    arrived = [request for request in trace.requests if start <= request.arrived_at < end]
    return sum(request.tier != 0 for request in arrived) / len(arrived)


def queue_wait(trace: Trace, start: float, end: float, quantile: float) -> float:
    """Return a quantile of the first tier's queue wait, in seconds.

    The wait of a request is the time from its arrival until its first token is computed for; one that
    still waits at the end of the run counts with the time that it has waited.
    """
    waits = sorted(
        (trace.spec.duration_s if request.started_at is None else request.started_at)
        - request.arrived_at
        for request in trace.requests
        if request.tier == 0 and start <= request.arrived_at < end
    )
    return waits[max(0, ceil(quantile * len(waits)) - 1)]


def spills(trace: Trace, start: float, end: float) -> list[tuple[float, float]]:
    """Return (seconds, share that the first tier was told to pass on) at every observation."""
    return [(tick.at, tick.decision.spill) for tick in ticks(trace, start, end)]


def settled(trace: Trace, start: float, end: float, *, ideal: float, tolerance: float) -> float:
    """Return how long after `start` the spill reached the ideal to stay, in seconds.

    The spill is averaged over the last `SETTLED_OVER_S` (but not from before `start`), as the share of
    requests that really went elsewhere would be. It has settled after the last moment in the window at
    which this mean was further than `tolerance` from `ideal`; the length of the window when it never did.
    """
    found = [spill for _, spill in spills(trace, start, end)]
    reach = round(SETTLED_OVER_S / TICK_S)
    last = 0
    for index in range(len(found)):
        recent = found[max(0, index + 1 - reach) : index + 1]
        if abs(fmean(recent) - ideal) > tolerance:
            last = index + 1
    return min(end - start, last * TICK_S)


def overshoot(trace: Trace, start: float, end: float, *, ideal: float) -> float:
    """Return how far the spill went beyond the ideal at most, 0 if it never did."""
    return max(0.0, *(spill - ideal for _, spill in spills(trace, start, end)))


def jumps_per_min(trace: Trace, start: float, end: float, *, size: float, within_s: float) -> float:
    """Return how often per minute the spill moved by more than `size` within `within_s`.

    A move is counted once: the next one is looked for from its end on.
    """
    found = spills(trace, start, end)
    reach = round(within_s / TICK_S)
    count, index = 0, 0
    while index < len(found):
        recent = [spill for _, spill in found[max(0, index - reach) : index + 1]]
        if max(recent) - min(recent) > size:
            count += 1
            found = found[index:]
            index = 0
        index += 1
    return count * 60.0 / (end - start)
