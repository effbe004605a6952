"""The published plan, and whether a number moved far enough to publish a new one.

Small moves are not worth a push: an endpoint weight is published when one of its tier moved by more
than `publish_change_ratio`, or when a ceiling, a state, the freshness, a level or a tier's share
changed. Whatever did not change keeps its object.

Numbers that only people read (pressure, demand, capacity) are renewed when they moved far, so that a
view or an explanation is never far off; that changes no byte of what proxies get.
"""

from __future__ import annotations

from collections.abc import Sequence

from xds_server.core import events as happened
from xds_server.core import reasons
from xds_server.core.model import ModelName
from xds_server.core.plan import (
    FORCED,
    TIER_WEIGHT_TOTAL,
    EndpointHealth,
    Event,
    FaultState,
    Freshness,
    InstancePlan,
    Level,
    ModelPlan,
    Reason,
    TierPlan,
)
from xds_server.core.policy import WeightPolicy
from xds_server.core.sentences import ABOVE_MEAN, BELOW_MEAN, EASING
from xds_server.core.spill import TierShare
from xds_server.core.state import InstanceState, ModelState, TierStep
from xds_server.core.track import Track
from xds_server.core.weights import allocate

_HEALTHY = FaultState.HEALTHY
_FRESH = Freshness.FRESH
_SHOWN_PRESSURE = 0.1
"""A pressure is renewed when it moved by this much ..."""
_SHOWN_RATIO = 0.25
"""... and a rate when it moved by this share."""
_SERVES = EndpointHealth.HEALTHY
_FROZEN = "Too many of its instances send no telemetry: its weights are kept."
_UNFROZEN = "Enough of its instances are heard of again; those that are up to date have {:.0%} of its capacity."
_NO_CAPACITY = Reason(rule="no_capacity", text="None of its instances may take requests.")


def model_plan(
    old: ModelPlan | None,
    name: ModelName,
    steps: Sequence[TierStep],
    shares: Sequence[TierShare],
    policy: WeightPolicy,
    *,
    fits: bool,
) -> ModelPlan:
    """Return the plan of a model: the old object when nothing moved far enough.

    Args:
        old: The published plan; None before the first.
        name: The model's name.
        steps: What the tiers' steps found.
        shares: What the spill decided.
        policy: Holds the publishing threshold.
        fits: The old plan is known to have the same tiers and instances in the same order.

    Returns:
        Tiers in chain order whose weights add up to `TIER_WEIGHT_TOTAL`.
    """
    given = route([s.share for s in shares], [can_serve(step) for step in steps])
    integers = allocate(given, TIER_WEIGHT_TOTAL)
    old_tiers = {} if old is None else {tier.name: tier for tier in old.tiers}
    plans: list[TierPlan] = []
    for number, (step, share) in enumerate(zip(steps, shares, strict=True)):
        before = old_tiers.get(step.state.tier.name)
        instances = _instances(
            step,
            () if before is None else before.instances,
            policy,
            fits=fits and before is not None,
        )
        serves = can_serve(step)
        reason = share.reason if serves else _NO_CAPACITY
        if (
            before is not None
            and instances is before.instances
            and before.level is step.level
            and before.weight == integers[number]
            and before.reason.rule == reason.rule
            and (reason.rule != FORCED or before.reason == reason)
            and not _has_moved(before.pressure, step.pressure, _SHOWN_PRESSURE)
            and not _has_moved(before.demand, share.demand, _SHOWN_RATIO * (before.demand or 0.0))
            and not _has_moved(
                before.capacity, share.capacity, _SHOWN_RATIO * (before.capacity or 0.0)
            )
        ):
            plans.append(before)
            continue
        plans.append(
            TierPlan(
                name=step.state.tier.name,
                level=step.level,
                pressure=step.pressure,
                share=given[number],
                weight=integers[number],
                spill=share.spill if serves else 1.0,
                demand=share.demand,
                capacity=share.capacity,
                reason=reason,
                instances=instances,
            )
        )
    if (
        old is not None
        and len(old.tiers) == len(plans)
        and all(new is was for new, was in zip(plans, old.tiers, strict=True))
    ):
        return old
    return ModelPlan(name=name, tiers=tuple(plans))


def can_serve(step: TierStep) -> bool:
    """Whether a tier can take any request at all."""
    return step.state.tier.is_static or any(s.ceiling > 0.0 for s in step.state.instances)


def route(shares: Sequence[float], able: Sequence[bool]) -> list[float]:
    """Move the shares of tiers that can serve nothing to tiers that can, downstream first.

    Args:
        shares: One per tier in chain order.
        able: Whether the tier can serve.

    Returns:
        Shares that add up to what they did, none of it at a tier that cannot serve. When no tier can
        and there is no static one, the first gets everything: a request that may fail is better than
        a route without weights.
    """
    given = [share if can else 0.0 for share, can in zip(shares, able, strict=True)]
    moved = 0.0
    for number, (share, can) in enumerate(zip(shares, able, strict=True)):
        if can:
            given[number] += moved
            moved = 0.0
        else:
            moved += share
    if not any(able):
        return [1.0] + [0.0] * (len(given) - 1)
    if moved > 0.0:
        last = max(number for number, can in enumerate(able) if can)
        given[last] += moved
    if not any(given):
        given[able.index(True)] = 1.0
    return given


def plan_events(before: ModelPlan, after: ModelPlan) -> list[Event]:
    """Return what changed between two plans of a model: levels, the begin and end of spill.

    Args:
        before: The plan that was published.
        after: The plan that is published now.

    Returns:
        Events in chain order, of the tiers that both plans have.
    """
    events: list[Event] = []
    if after is before:
        return events
    old_tiers = {tier.name: tier for tier in before.tiers}
    for new in after.tiers:
        old = old_tiers.get(new.name)
        if old is None:
            continue
        if old.level is not new.level:
            events.append(
                happened.level_changed(
                    after.name,
                    new.name,
                    before=old.level,
                    after=new.level,
                    reason=level_reason(new),
                )
            )
        if (old.spill > 0.0) is not (new.spill > 0.0):
            name = "spill_started" if new.spill > 0.0 else "spill_stopped"
            events.append(happened.tier_event(after.name, new.name, name=name, reason=new.reason))
    return events


def freeze_events(model: ModelState, steps: Sequence[TierStep]) -> list[Event]:
    """Return which tiers were frozen, or are no longer.

    Args:
        model: The model before this evaluation.
        steps: What the tiers' steps found.

    Returns:
        Events in chain order.
    """
    events: list[Event] = []
    for before, step in zip(model.tiers, steps, strict=True):
        is_frozen = step.reading.frozen
        if not before.is_known or is_frozen is (before.frozen_since is not None):
            continue
        name = "tier_frozen" if is_frozen else "tier_unfrozen"
        text = _FROZEN if is_frozen else _UNFROZEN.format(step.reading.fresh_ratio)
        reason = Reason(rule=name, text=text, inputs={"fresh_ratio": step.reading.fresh_ratio})
        events.append(
            happened.tier_event(model.model.name, before.tier.name, name=name, reason=reason)
        )
    return events


def level_reason(tier: TierPlan) -> Reason:
    """Return why a tier has its level."""
    inputs: dict[str, float | str] = {}
    if tier.pressure is not None:
        inputs["pressure"] = tier.pressure
    if tier.reason is _NO_CAPACITY:
        return _NO_CAPACITY
    if tier.level is Level.HEALTHY:
        text = "Pressure stayed below the high watermark and nothing waits."
    elif tier.level is Level.DEGRADED:
        text = "Pressure reached the high watermark, or GPU memory is short."
    else:
        text = "Pressure reached the critical watermark."
    return Reason(rule="kv_pressure", text=text, inputs=inputs)


def _instances(
    step: TierStep, old: tuple[InstancePlan, ...], policy: WeightPolicy, *, fits: bool
) -> tuple[InstancePlan, ...]:
    states, integers = step.state.instances, step.weights
    known: Sequence[InstancePlan | None] = old
    is_same_fleet = fits or [each.id for each in old] == [each.instance.id for each in states]
    moved = not is_same_fleet
    ratio = policy.publish_change_ratio
    if is_same_fleet:
        for weight, published in zip(integers, old, strict=True):
            was = published.weight
            if weight != was and abs(weight - was) > ratio * was:
                moved = True
                break
    else:
        by_id = {plan.id: plan for plan in old}
        known = [by_id.get(state.instance.id) for state in states]
    if not moved and not step.arrived and not any(map(_is_news, old, states)):
        return old
    frozen = step.reading.frozen
    easing, corrections, slots = step.state.easing, step.state.corrections, step.slots
    mean = step.mean
    is_plain = mean is not None and not frozen and not easing
    plans: list[InstancePlan] = []
    is_same = is_same_fleet
    for position, (state, before) in enumerate(zip(states, known, strict=True)):
        if before is None:
            weight = integers[position]
        else:
            # News that moves no weight must not move the others' either: that would be a push.
            was = before.weight
            weight = integers[position] if moved else was
            if (
                weight == was
                and not (step.arrived and before.rule == EASING and position not in easing)
                and not _is_news(before, state)
            ):
                plans.append(before)
                continue
        is_same = False
        track, load, correction = state.track, state.pressure, corrections[position]
        if (
            is_plain
            and load is not None
            and correction != 1.0
            and state.ceiling == 1.0
            and state.freshness is _FRESH
            and track.state is _HEALTHY
        ):
            # As `reasons.for_instance`, without the call: nearly all are like this.
            rule = ABOVE_MEAN if correction < 1.0 else BELOW_MEAN
            plans.append(
                InstancePlan(
                    state.instance.id if before is None else before.id,
                    _HEALTHY,
                    _FRESH,
                    1.0,
                    weight,
                    _SERVES,
                    load,
                    (rule, slots[position], correction, mean),
                )
            )
            continue
        if state.ceiling > 0.0:
            health = _SERVES
        elif track.state is FaultState.DRAINING:
            health = EndpointHealth.DRAINING
        else:
            health = EndpointHealth.UNHEALTHY
        plans.append(
            InstancePlan(
                state.instance.id,
                track.state,
                state.freshness,
                state.ceiling,
                weight,
                health,
                load,
                reasons.for_instance(
                    state, slots[position], correction, mean, frozen, position in easing
                ),
            )
        )
    return old if is_same else tuple(plans)


def _is_news(before: InstancePlan, state: InstanceState) -> bool:
    """Whether anything but its weight makes an instance's plan worth renewing."""
    track, load, shown = state.track, state.pressure, before.pressure
    if load is None or shown is None:
        if load is not shown:
            return True
    elif not -_SHOWN_PRESSURE < load - shown < _SHOWN_PRESSURE:
        return True
    return (
        track.state is not before.state
        or state.freshness is not before.freshness
        or state.ceiling != before.ceiling
        or (track.state is not _HEALTHY and _has_other_reason(track, before))
    )


def _has_other_reason(track: Track, before: InstancePlan) -> bool:
    """Whether an instance that is not healthy is so for another cause, or proxies see it otherwise.

    An agent's detail may count seconds and is no news; of a drain it is who wants it.
    """
    if track.cause != before.rule:
        return True
    said = before.reason.inputs
    if track.state is FaultState.DRAINING and track.detail != said.get("detail", ""):
        return True
    return track.seen != said.get("proxies", "")


def _has_moved(before: float | None, after: float | None, by: float) -> bool:
    """Whether a number for people is worth renewing."""
    if before is None or after is None:
        return before is not after
    return abs(after - before) > by
