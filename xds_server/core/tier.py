"""One tier's step: level, mean pressure, corrections, weights, and what the spill needs to know.

Inside a tier `w = K * c * clamp(1 - gain * (u - mean(u)))`: capacity times ceiling, corrected gently
toward the mean pressure of the instances that may take traffic. A policy that follows the emptiest
instance is worse than static weights as soon as the loop has a lag of two seconds, and one that goes
to zero never hears from an idle engine again: its gauges move only when it works.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from xds_server.core import levels
from xds_server.core.levels import LevelTrack
from xds_server.core.plan import Freshness, Level
from xds_server.core.policy import Policy
from xds_server.core.spill import TierReading
from xds_server.core.state import InstanceState, TierState, TierStep

_BLIND = Freshness.BLIND
_FRESH = Freshness.FRESH
_HOLD = Freshness.HOLD
_NOBODY: frozenset[int] = frozenset()
_EASE_STEP_S = 1.0
"""How often an easing correction moves: each move may be a push."""


class Sums(NamedTuple):
    """What a pass over a tier's instances adds up."""

    slots: float
    available: float
    serving: int
    blind: int
    """Of those that serve."""
    mean: float | None
    """Mean pressure of those that serve and are not blind, weighted by what they offer."""
    fresh_ratio: float
    """Share of what the tier offers that is offered by fresh instances."""
    running: float | None
    waiting: float | None
    queued: bool
    """Whether an instance that serves is known to have a queue."""
    lag_s: float | None
    tripped: bool
    deadline: float
    """When an instance must be looked at though no sample came."""


def step(state: TierState, shaken: set[int], policy: Policy, now: float) -> TierStep:
    """Weigh a tier.

    Args:
        state: The tier with its instances already stepped.
        shaken: Positions whose telemetry was lost or returned: their correction eases.
        policy: The thresholds.
        now: Monotonic seconds.

    Returns:
        The new state and everything that the plan and the spill need.
    """
    slots = capacities(state.instances, policy.weights.default_slots)
    sums = _add_up(state.instances, slots)
    frozen = sums.serving > 0 and sums.blind > policy.telemetry.freeze_ratio * sums.serving
    frozen_since = (now if state.frozen_since is None else state.frozen_since) if frozen else None
    track = levels.step(
        state.level,
        pressure=None if frozen else sums.mean,
        queue_empty=not sums.queued,
        policy=policy.kv,
        now=now,
    )
    moved = shaken if state.is_known else set()
    if state.is_known and (frozen or state.frozen_since is not None):
        moved = set(range(len(state.instances)))
    shaken_at = now if moved else state.shaken_at
    # The first agents that return say nothing yet about the mean: whoever is where it belongs among
    # them goes on easing until the others have had the time to speak.
    telemetry = policy.telemetry
    awaits = now < shaken_at + telemetry.interval_s * telemetry.stale_intervals
    corrections, easing = _correct(
        state,
        policy,
        now,
        mean=sums.mean,
        frozen_since=frozen_since,
        shaken=moved,
        awaits=awaits and not frozen,
    )
    unit = policy.weights.scale * len(slots) / sums.slots if sums.slots > 0.0 else 0.0
    if sums.available == sums.slots:  # every ceiling is 1
        integers = [round(k * c * unit) or 1 for k, c in zip(slots, corrections, strict=True)]
    else:
        integers = [
            round(k * instance.ceiling * factor * unit) or 1
            for k, instance, factor in zip(slots, state.instances, corrections, strict=True)
        ]
    due = min(sums.deadline, levels.deadline(track, policy.kv))
    if frozen_since is not None and now < frozen_since + policy.telemetry.blind_after_s:
        due = min(due, frozen_since + policy.telemetry.blind_after_s)
    if easing:
        due = min(due, now + _EASE_STEP_S)
    level = effective_level(track, sums, is_static=state.tier.is_static)
    reading = TierReading(
        slots=sums.slots,
        available_slots=sums.available,
        fresh_ratio=sums.fresh_ratio,
        running=sums.running,
        waiting=sums.waiting,
        pressure=sums.mean,
        flows=tuple([flow for s in state.instances if (flow := s.flow) is not None]),
        limit=state.tier.limit,
        is_static=state.tier.is_static,
        level=level,
        frozen=frozen,
        lag_s=sums.lag_s,
    )
    after = TierState(
        tier=state.tier,
        instances=state.instances,
        corrections=corrections,
        easing=easing,
        eased_at=now,
        level=track,
        frozen_since=frozen_since,
        is_known=state.is_known or (sums.serving > 0 and not frozen),
        shaken_at=shaken_at,
    )
    return TierStep(
        after,
        level,
        sums.mean,
        integers,
        slots,
        sums.mean,
        reading,
        due,
        bool(state.easing - easing),
    )


def capacities(instances: tuple[InstanceState, ...], default: float) -> list[float]:
    """Return K of every instance; an unknown one is taken as the mean of the known ones."""
    slots = [s.slots for s in instances]
    if all(slots):
        return slots  # type: ignore[return-value]  # mypy cannot narrow a list by all()
    known = [k for k in slots if k]
    fallback = sum(known) / len(known) if known else default
    return [k or fallback for k in slots]


def effective_level(track: LevelTrack, sums: Sums, *, is_static: bool) -> Level:
    """Return the level that the tier acts on: its own, unless it cannot serve or memory runs short."""
    if is_static:
        return Level.HEALTHY
    if sums.serving == 0:
        return Level.CRITICAL
    if sums.tripped and track.level is Level.HEALTHY:
        return Level.DEGRADED
    return track.level


def _add_up(instances: tuple[InstanceState, ...], slots: list[float]) -> Sums:
    total = available = weight = weighted = fresh = lag_s = 0.0
    running = waiting = 0.0
    knows_running = knows_waiting = queued = tripped = False
    serving = blind = lags = 0
    due = inf
    for k, state in zip(slots, instances, strict=True):
        if state.deadline < due:  # noqa: PLR1730  # a call per instance and step
            due = state.deadline
        total += k
        share = k * state.ceiling
        if share <= 0.0:
            # What a drained instance still runs, or a dead one last said, is no load of the tier.
            continue
        serving += 1
        available += share
        if state.vram.latch.on:
            tripped = True
        freshness = state.freshness
        if freshness is _BLIND:
            blind += 1
            continue
        load = state.pressure
        if load is not None:
            weight += share
            weighted += share * load
        queue = state.waiting
        if freshness is _FRESH:
            fresh += share
            runs = state.running
            if queue is not None:
                knows_waiting = True
                waiting += queue
            if runs is not None:
                knows_running = True
                running += runs
            lags += 1
            lag_s += state.lag_s
        if queue is None and state.held is not None:
            queue = state.held.waiting
        if queue:
            queued = True
    return Sums(
        total,
        available,
        serving,
        blind,
        weighted / weight if weight > 0.0 else None,
        fresh / available if available > 0.0 else 0.0,
        running if knows_running else None,
        waiting if knows_waiting else None,
        queued,
        lag_s / lags if lags else None,
        tripped,
        due,
    )


def _correct(
    state: TierState,
    policy: Policy,
    now: float,
    *,
    mean: float | None,
    frozen_since: float | None,
    shaken: set[int],
    awaits: bool,
) -> tuple[tuple[float, ...], frozenset[int]]:
    """Move every correction to its target: at once, or slowly where telemetry was shaken."""
    easing = state.easing | shaken if shaken else state.easing
    reach = policy.weights.ease_per_s * (now - state.eased_at) if state.easing else 0.0
    static = frozen_since is not None and now >= frozen_since + policy.telemetry.blind_after_s
    gain = policy.weights.gain
    lowest = max(policy.weights.correction_min, policy.weights.trickle_ratio)
    highest = policy.weights.correction_max
    corrections: list[float] = []
    if frozen_since is None and mean is not None and not easing:
        # Nearly always; as below, without what cannot be.
        for instance, current in zip(state.instances, state.corrections, strict=True):
            load = instance.pressure
            if instance.freshness is _HOLD:
                target = current
            elif load is None or instance.ceiling <= 0.0:
                target = 1.0
            else:
                target = 1.0 - gain * (load - mean)
                if target < lowest:
                    target = lowest
                elif target > highest:
                    target = highest
            corrections.append(target)
        return tuple(corrections), _NOBODY
    unreached: list[int] = []
    for position, (instance, current) in enumerate(
        zip(state.instances, state.corrections, strict=True)
    ):
        load = instance.pressure
        if frozen_since is not None:
            target = 1.0 if static else current
        elif instance.freshness is _HOLD:
            target = current
        elif mean is None or load is None or instance.ceiling <= 0.0:
            target = 1.0
        else:
            target = 1.0 - gain * (load - mean)
            if target < lowest:
                target = lowest
            elif target > highest:
                target = highest
        if easing and position in easing:
            eased = min(max(target, current - reach), current + reach)
            if eased != target or (awaits and instance.freshness is _FRESH):
                unreached.append(position)
            target = eased
        corrections.append(target)
    return tuple(corrections), frozenset(unreached)
