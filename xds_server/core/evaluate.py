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
from xds_server.core.inputs import Input
from xds_server.core.plan import Event, Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample
from xds_server.core.state import FleetState, InstanceState, ModelState, TierState

__all__ = ["evaluate", "initial_state", "retarget"]


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
    touched: dict[int, dict[tuple[int, int], list[Input]]] = {}
    for item in inputs:
        where = index.get(item.instance)
        if where is not None:
            model, tier, position = where
            touched.setdefault(model, {}).setdefault((tier, position), []).append(item)
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
        models[number] = _step(models[number], touched.get(number, {}), policy, now, events)
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
    inputs: dict[tuple[int, int], list[Input]],
    policy: Policy,
    now: float,
    events: list[Event],
) -> ModelState:
    """Step the instances that something happened to, then every tier, then the spill."""
    is_due = now >= model.deadline
    by_tier: dict[int, dict[int, list[Input]]] = {}
    for (tier, position), items in inputs.items():
        by_tier.setdefault(tier, {})[position] = items
    stepped: list[tuple[TierState, set[int]]] = []
    for number, tier_state in enumerate(model.tiers):
        instances, shaken = _step_instances(
            model, tier_state, by_tier.get(number, {}), policy, now=now, events=events
        )
        current = tier_state
        if instances is not tier_state.instances:
            current = replace(tier_state, instances=instances)
        stepped.append((current, shaken))
    if not is_due and all(new is old for (new, _), old in zip(stepped, model.tiers, strict=True)):
        return model
    steps = [tiers.step(current, shaken, policy, now) for current, shaken in stepped]
    return _decide(model, steps, policy, now, events)


def _step_instances(
    model: ModelState,
    tier: TierState,
    inputs: dict[int, list[Input]],
    policy: Policy,
    *,
    now: float,
    events: list[Event],
) -> tuple[tuple[InstanceState, ...], set[int]]:
    shaken: set[int] = set()
    changed: dict[int, InstanceState] = {}
    for position, before in enumerate(tier.instances):
        items = inputs.get(position)
        if items is None:
            if now < before.deadline:
                continue
            after = instance.elapse(before, policy, now)
        else:
            after = before
            for item in items:
                after = _take(after, item, policy, now)
            if now >= after.deadline:
                after = instance.elapse(after, policy, now)
        if after is before:
            continue
        changed[position] = after
        if after.freshness is not before.freshness:
            shaken.add(position)
        if (
            after.track is not before.track
            or after.freshness is not before.freshness
            or after.vram is not before.vram
            or after.throttle is not before.throttle
        ):
            events += happened.of_instance(model.model.name, tier.tier.name, before, after)
    if not changed:
        return tier.instances, shaken
    instances = list(tier.instances)
    for position, after in changed.items():
        instances[position] = after
    return tuple(instances), shaken


def _take(state: InstanceState, item: Input, policy: Policy, now: float) -> InstanceState:
    if isinstance(item, Sample):
        return instance.observe(state, item, policy, now)
    who = None
    if item.draining:
        who = f"{item.who}: {item.why}" if item.why else item.who
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
