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

from xds_server.core import events as happened
from xds_server.core import instance, publish, spill
from xds_server.core import tier as tiers
from xds_server.core.assemble import initial_state, retarget
from xds_server.core.inputs import Drain, Input
from xds_server.core.plan import Event, Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample
from xds_server.core.state import FleetState, InstanceState, ModelState, TierState

__all__ = ["evaluate", "initial_state", "retarget"]

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
    for number in sorted(touched.keys() | due):
        models[number] = _step(models[number], touched.get(number, []), policy, now, events)
    plans = tuple([model.plan for model in models])
    if all(new is old for new, old in zip(plans, state.plans, strict=True)):
        plans = state.plans
    deadline = min([model.deadline for model in models], default=inf)
    after = FleetState(
        topology=state.topology,
        models=tuple(models),
        plans=plans,
        index=index,
        started_at=state.started_at,
        deadline=deadline,
    )
    return after, Plan(
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
    """Step the instances that something happened to, then every tier, then the spill."""
    is_due = now >= model.deadline
    renewed: list[list[InstanceState] | None] = [None] * len(model.tiers)
    for tier, position, item in news:
        instances = renewed[tier]
        if instances is None:
            instances = renewed[tier] = list(model.tiers[tier].instances)
        if isinstance(item, Sample):
            instances[position] = instance.observe(instances[position], item, policy, now)
        else:
            instances[position] = _drain(instances[position], item, policy, now)
    stepped = []
    for tier_state, instances in zip(model.tiers, renewed, strict=True):
        current = instances
        if is_due:
            current = [
                s if now < s.deadline else instance.elapse(s, policy, now)
                for s in instances or tier_state.instances
            ]
        stepped.append(_renew(model, tier_state, current, events))
    if not is_due and all(new is old for (new, _), old in zip(stepped, model.tiers, strict=True)):
        return model
    steps = [tiers.step(current, shaken, policy, now) for current, shaken in stepped]
    return _decide(model, steps, policy, now, events)


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
    return (tier if is_same else replace(tier, instances=tuple(instances))), shaken


def _drain(state: InstanceState, order: Drain, policy: Policy, now: float) -> InstanceState:
    who = None
    if order.draining:
        who = f"{order.who}: {order.why}" if order.why else order.who
    return instance.drain(state, who, policy, now)


def _decide(
    model: ModelState,
    steps: list[tiers.TierStep],
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
        spill=spilled,
        plan=plan,
        deadline=due,
    )
