"""From samples to a plan: the one function to read first.

    samples, drains --> instance.py   faults -> ceiling, freshness, VRAM, pressure   (per instance)
                    --> tier.py       level, corrections -> endpoint weights         (per tier)
                    --> spill.py      demand, capacity -> tier shares                (per model)
                    --> publish.py    the plan, if a number moved far enough to matter

Pure: the same state, inputs, policy and time give the same plan. A model without inputs whose deadline
has not passed keeps its objects and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from operator import is_not
from zlib import crc32

from xds_server.core import events as happened
from xds_server.core import instance, publish, spill
from xds_server.core import tier as tiers
from xds_server.core.assemble import initial_state, retarget
from xds_server.core.inputs import Drain, Input
from xds_server.core.model import ModelName
from xds_server.core.plan import Event, Level, Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample
from xds_server.core.state import FleetState, InstanceState, ModelState, TierState, TierStep

__all__ = ["evaluate", "initial_state", "retarget"]

_HEALTHY = Level.HEALTHY
_News = list[tuple[int, int, Input]]
"""Tier, position and input, in order of arrival."""


def evaluate(
    state: FleetState, inputs: Sequence[Input], policy: Policy, now: float
) -> tuple[FleetState, Plan]:
    """Take what arrived and what time brings, and decide.

    Args:
        state: What the last call (or `initial_state`, `retarget`) returned.
        inputs: Samples and drains in order of arrival; unknown instances are ignored.
        policy: The thresholds. When it changed, call `retarget` first.
        now: Monotonic seconds, the clock of `Sample.observed_at`.

    Returns:
        The new state and the plan. `Plan.models` is the same tuple as before when nothing moved far
        enough to be published, and every untouched model keeps its `ModelPlan` object.
    """
    index = state.index
    touched: dict[int, _News] = {}
    for item in inputs:
        where = index.get(item.instance)
        if where is not None:
            model, tier, position = where
            news = touched.get(model)
            if news is None:
                news = touched[model] = []
            news.append((tier, position, item))
    due = (
        {number for number, model in enumerate(state.models) if now >= model.deadline}
        if (now >= state.deadline)
        else set()
    )
    events = list(state.pending)
    if not touched and not due:
        return _unchanged(state, events)
    models = list(state.models)
    plans = state.plans
    for number in sorted(touched.keys() | due):
        before = models[number]
        after = models[number] = _step(before, touched.get(number, []), policy, now, events)
        if after.plan is not before.plan:
            plans = ()
    if not plans:
        plans = tuple([model.plan for model in models])
    deadline = min([model.deadline for model in models], default=inf)
    fleet = FleetState(
        topology=state.topology,
        models=tuple(models),
        plans=plans,
        index=index,
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


def _step(
    model: ModelState,
    news: _News,
    policy: Policy,
    now: float,
    events: list[Event],
) -> ModelState:
    """Step the instances that something happened to, then their tiers, then the spill."""
    is_due = now >= model.deadline
    settles_at = _settles_at(model.model.name, policy.weights.settle_s, now)
    is_quiet = settles_at > now and not is_due and _is_calm(model)
    bound = policy.weights.publish_change_ratio / 2.0
    earliest = settles_at
    renewed: list[list[InstanceState] | None] = [None] * len(model.tiers)
    for tier, position, item in news:
        instances = renewed[tier]
        if instances is None:
            instances = renewed[tier] = list(model.tiers[tier].instances)
        before = instances[position]
        if isinstance(item, Sample):
            after = instance.observe(before, item, policy, now)
        else:
            after = _drain(before, item, policy, now)
        if after is before:
            continue
        instances[position] = after
        if is_quiet:
            is_quiet = _says_little(model.steps[tier].state.instances[position], after, bound)
            earliest = min(earliest, after.deadline)
    if is_quiet:
        return _settle(model, renewed, earliest)
    tier_steps = []
    for tier_state, instances, last in zip(model.tiers, renewed, model.steps, strict=True):
        current = instances
        if is_due:
            current = [
                s if now < s.deadline else instance.elapse(s, policy, now)
                for s in instances or tier_state.instances
            ]
        ready, shaken = _renew(model, tier_state, current, events)
        if ready is last.state and now < last.deadline:
            tier_steps.append(last)
        else:
            tier_steps.append(tiers.step(ready, shaken, policy, now))
    if not is_due and all(new is old for new, old in zip(tier_steps, model.steps, strict=True)):
        return model
    return _decide(model, tier_steps, policy, now, events)


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


def _settle(model: ModelState, renewed: list[list[InstanceState] | None], due: float) -> ModelState:
    """Put quiet samples in place; they are decided upon when they are due."""
    is_same = True
    after = list(model.tiers)
    for number, instances in enumerate(renewed):
        if instances is not None and any(map(is_not, instances, after[number].instances)):
            after[number] = after[number].holding(tuple(instances))
            is_same = False
    if is_same:
        return model
    due = min(model.deadline, due)
    return ModelState(model.model, tuple(after), model.steps, model.spill, model.plan, due)


def _renew(
    model: ModelState,
    tier: TierState,
    instances: list[InstanceState] | None,
    events: list[Event],
) -> tuple[TierState, set[int]]:
    """Put changed instances in place; also return those whose telemetry was lost or returned."""
    shaken: set[int] = set()
    if instances is None:
        return tier, shaken
    is_same = True
    for position, (before, after) in enumerate(zip(tier.instances, instances, strict=True)):
        if after is before:
            continue
        is_same = False
        if after.freshness is not before.freshness:
            shaken.add(position)
        elif (
            after.track is before.track
            and after.vram is before.vram
            and after.throttle is before.throttle
        ):
            continue
        events += happened.of_instance(model.model.name, tier.tier.name, before, after)
    return (tier if is_same else tier.holding(tuple(instances))), shaken


def _drain(state: InstanceState, order: Drain, policy: Policy, now: float) -> InstanceState:
    who = None
    if order.draining:
        who = f"{order.who}: {order.why}" if order.why else order.who
    return instance.drain(state, who, policy, now)


def _decide(
    model: ModelState,
    steps: list[TierStep],
    policy: Policy,
    now: float,
    events: list[Event],
) -> ModelState:
    readings = [step.reading for step in steps]
    spilled, shares, again_at = spill.step(model.spill, readings, policy.spill, now)
    plan = publish.model_plan(model.plan, model.model.name, steps, shares, policy.weights)
    events += publish.plan_events(model.plan, plan)
    events += publish.freeze_events(model, steps)
    due = min([step.deadline for step in steps], default=inf)
    if again_at is not None:
        due = min(due, again_at)
    return ModelState(
        model=model.model,
        tiers=tuple([step.state for step in steps]),
        steps=tuple(steps),
        spill=spilled,
        plan=plan,
        deadline=due,
    )
