"""From samples to a plan: the module to read first.

    observe   samples, drains --> instance.py   faults -> ceiling, freshness, VRAM, pressure  (per instance)
              evidence        --> witness.py    what proxies saw against what the agent says
    evaluate                      tier.py       level, corrections -> endpoint weights        (per tier)
                                  spill.py      demand, capacity -> tier shares               (per model)
                                  publish.py    the plan, if a number moved far enough to matter

`observe` takes in what arrived and says by when each model must be decided upon: at once, or, when little
was said, a moment later together with what comes until then. `evaluate` decides upon what is due.

Pure: the same state, inputs, policy and time give the same plan. A model that is not due keeps its objects
and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter, is_not
from zlib import crc32

from xds_server.core import events as happened
from xds_server.core import faults, force, instance, publish, spill, witness
from xds_server.core import tier as tiers
from xds_server.core.assemble import initial_state, retarget
from xds_server.core.inputs import Drain, Evidence, Force, Input
from xds_server.core.model import ModelName
from xds_server.core.plan import Event, Level, Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample
from xds_server.core.state import FleetState, InstanceState, ModelState, TierState

__all__ = ["evaluate", "initial_state", "observe", "retarget"]

_HEALTHY = Level.HEALTHY
_FRESHNESS = attrgetter("freshness")
_News = list[tuple[int, int, Sample | Drain | Evidence]]
"""Tier, position and input, in order of arrival."""


def observe(state: FleetState, inputs: Sequence[Input], policy: Policy, now: float) -> FleetState:
    """Take in what arrived.

    Args:
        state: What the last call of this module returned.
        inputs: Samples, drains and evidence in order of arrival; unknown instances are ignored.
        policy: The thresholds. When it changed, call `retarget` first.
        now: Monotonic seconds, the clock of `Sample.observed_at`.

    Returns:
        The state in which everything is known and nothing decided; its `deadline` has passed where a model
        must be decided upon at once.
    """
    index = state.index
    touched: dict[int, _News] = {}
    orders: list[Force] = []
    for item in inputs:
        if isinstance(item, Force):
            orders.append(item)
            continue
        where = index.get(item.instance)
        if where is not None:
            model, tier, position = where
            news = touched.get(model)
            if news is None:
                news = touched[model] = []
            news.append((tier, position, item))
    if not touched and not orders:
        return state
    models = list(state.models)
    events = list(state.pending)
    deadline = state.deadline
    for number, news in touched.items():
        after = models[number] = _take(models[number], news, policy, now, events)
        deadline = min(deadline, after.deadline)
    for order in orders:
        deadline = min(deadline, _order(models, order, now, events))
    return FleetState(
        topology=state.topology,
        models=tuple(models),
        plans=state.plans,
        index=index,
        started_at=state.started_at,
        deadline=deadline,
        pending=tuple(events),
    )


def evaluate(state: FleetState, policy: Policy, now: float) -> tuple[FleetState, Plan]:
    """Decide upon every model that is due.

    Args:
        state: What `observe` (or the last call, or `initial_state`, `retarget`) returned.
        policy: The thresholds. When it changed, call `retarget` first.
        now: Monotonic seconds.

    Returns:
        The new state and the plan. `Plan.models` is the same tuple as before when nothing moved far
        enough to be published, and every model that was not due keeps its `ModelPlan` object.
    """
    events = list(state.pending)
    if now < state.deadline:
        return _unchanged(state, events)
    models = list(state.models)
    plans = state.plans
    for number, before in enumerate(state.models):
        if now < before.deadline:
            continue
        after = models[number] = _decide(before, policy, now, events)
        if after.plan is not before.plan:
            plans = ()
    if not plans:
        plans = tuple([model.plan for model in models])
    deadline = min([model.deadline for model in models], default=inf)
    fleet = FleetState(
        topology=state.topology,
        models=tuple(models),
        plans=plans,
        index=state.index,
        started_at=state.started_at,
        deadline=deadline,
    )
    return fleet, Plan(
        models=plans,
        next_deadline=None if deadline == inf else deadline,
        events=tuple(events),
    )


def _unchanged(state: FleetState, events: list[Event]) -> tuple[FleetState, Plan]:
    plan = Plan(
        models=state.plans,
        next_deadline=None if state.deadline == inf else state.deadline,
        events=tuple(events),
    )
    return (replace(state, pending=()) if state.pending else state), plan


def _order(models: list[ModelState], order: Force, now: float, events: list[Event]) -> float:
    """Take an operator's order in; return when its model must be decided upon."""
    for number, model in enumerate(models):
        if model.model.name == order.model:
            models[number], event = force.take(model, order, now)
            if event is not None:
                events.append(event)
            return models[number].deadline
    return inf


def _take(
    model: ModelState, news: _News, policy: Policy, now: float, events: list[Event]
) -> ModelState:
    """Step the instances that something happened to, and say by when the model is to be decided upon."""
    due = _settles_at(model.model.name, policy.weights.settle_s, now)
    is_quiet = due > now and _is_calm(model)
    bound = policy.weights.publish_change_ratio / 2.0
    renewed: list[list[InstanceState] | None] = [None] * len(model.tiers)
    for tier, position, item in news:
        instances = renewed[tier]
        if instances is None:
            instances = renewed[tier] = list(model.tiers[tier].instances)
        before = instances[position]
        if isinstance(item, Sample):
            after = instance.observe(before, item, policy, now)
        elif isinstance(item, Drain):
            after = _drain(before, item, policy, now)
        elif item.is_failing and not _may_take_out(before, instances):
            events.append(happened.held_back(model.model.name, model.tiers[tier].tier.name, item))
            continue
        else:
            after = instance.hear(before, item, policy, now)
        if after is before:
            continue
        instances[position] = after
        if is_quiet:
            is_quiet = _says_little(model.steps[tier].state.instances[position], after, bound)
            due = min(due, after.deadline)
    states = list(model.tiers)
    is_same = True
    for number, instances in enumerate(renewed):
        known = states[number]
        if instances is None or not any(map(is_not, instances, known.instances)):
            continue
        is_same = False
        states[number] = known.holding(tuple(instances))
        if not is_quiet:
            events += _events(model, known, instances)
    if is_same:
        return model
    due = min(model.deadline, due if is_quiet else now)
    return ModelState(
        model.model, tuple(states), model.steps, model.spill, model.plan, due, model.forced
    )


def _may_take_out(state: InstanceState, tier: Sequence[InstanceState]) -> bool:
    """Whether evidence against an instance may be used; against one that is out it changes nothing."""
    if not faults.is_serving(state.track):
        return True
    return witness.may_take_out(each.track for each in tier)


def _events(model: ModelState, tier: TierState, after: Sequence[InstanceState]) -> list[Event]:
    """Return what happened to the instances of a tier, in the order in which they are configured."""
    events: list[Event] = []
    for was, now in zip(tier.instances, after, strict=True):
        if now is not was and (
            now.track is not was.track
            or now.freshness is not was.freshness
            or now.vram is not was.vram
            or now.throttle is not was.throttle
        ):
            events += happened.of_instance(model.model.name, tier.tier.name, was, now)
    return events


def _is_calm(model: ModelState) -> bool:
    """Whether nothing presses: while a model spills or a tier is pressed, every sample counts."""
    for step, memory in zip(model.steps, model.spill.tiers, strict=True):
        if step.level is not _HEALTHY or memory.spill != 0.0:
            return False
    return True


def _says_little(weighed: InstanceState, after: InstanceState, bound: float) -> bool:
    """Whether an instance can wait: against what was last decided upon only its load moved, little."""
    if (
        after.track is not weighed.track
        or after.freshness is not weighed.freshness
        or after.throttle is not weighed.throttle
        or after.vram.latch is not weighed.vram.latch
        or after.slots != weighed.slots
    ):
        return False
    load, then = after.pressure, weighed.pressure
    if load is None or then is None:
        return load is then
    return -bound <= load - then <= bound


def _settles_at(model: ModelName, settle_s: float, now: float) -> float:
    """Return when a quiet sample that comes now is decided upon at the latest.

    Each model has a time of its own, between half of `settle_s` and all of it: with the same time, models
    that were decided upon together once would be so for ever, and samples would wait for all of them.
    """
    return now + settle_s * (1.0 - crc32(model.encode()) / 2**33)


def _drain(state: InstanceState, order: Drain, policy: Policy, now: float) -> InstanceState:
    who = None
    if order.draining:
        who = f"{order.who}: {order.why}" if order.why else order.who
    return instance.drain(state, who, policy, now)


def _decide(model: ModelState, policy: Policy, now: float, events: list[Event]) -> ModelState:
    """Let time pass for the instances, then step the tiers that changed, then the spill, and publish."""
    steps = []
    for newest, last in zip(model.tiers, model.steps, strict=True):
        state = _elapse(model, newest, policy, now, events)
        if state is last.state and now < last.deadline:
            steps.append(last)
        else:
            steps.append(tiers.step(state, _shaken(last.state, state), policy, now))
    readings = [step.reading for step in steps]
    ruling = force.rule(model.forced, model.model, steps, now)
    spilled, shares, again_at = spill.step(
        model.spill, readings, policy.spill, now, forced=ruling.position
    )
    shares = force.shares(shares, ruling)
    plan = publish.model_plan(
        model.plan, model.model.name, steps, shares, policy.weights, fits=True
    )
    if ruling.event is not None:
        events.append(ruling.event)
    events += publish.plan_events(model.plan, plan)
    events += publish.freeze_events(model, steps)
    due = min([step.deadline for step in steps], default=inf)
    if again_at is not None:
        due = min(due, again_at)
    if ruling.forced is not None:
        due = min(due, ruling.forced.until)
    return ModelState(
        model.model,
        tuple([step.state for step in steps]),
        tuple(steps),
        spilled,
        plan,
        due,
        ruling.forced,
    )


def _elapse(
    model: ModelState, tier: TierState, policy: Policy, now: float, events: list[Event]
) -> TierState:
    """Let time pass for the instances whose deadline has come."""
    if now < min([each.deadline for each in tier.instances], default=inf):
        return tier
    renewed = [
        each if now < each.deadline else instance.elapse(each, policy, now)
        for each in tier.instances
    ]
    events += _events(model, tier, renewed)
    return tier.holding(tuple(renewed))


def _shaken(weighed: TierState, state: TierState) -> set[int]:
    """Return the positions whose telemetry was lost or has returned since the tier was last weighed."""
    if state.instances is weighed.instances:
        return set()
    before, after = map(_FRESHNESS, weighed.instances), map(_FRESHNESS, state.instances)
    moved = list(map(is_not, before, after))
    return (
        {position for position, has_moved in enumerate(moved) if has_moved} if any(moved) else set()
    )
