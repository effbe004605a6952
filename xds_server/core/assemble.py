"""The state of a fleet as it starts, and as its topology changes under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from xds_server.core import events, faults, force, instance, publish, spill
from xds_server.core import tier as tiers
from xds_server.core.levels import LevelTrack
from xds_server.core.model import Instance, InstanceId, Model, TierName, Topology
from xds_server.core.plan import Event, ModelPlan
from xds_server.core.policy import Policy
from xds_server.core.spill import SpillState
from xds_server.core.state import FleetState, Forced, InstanceState, ModelState, TierState
from xds_server.core.track import Context, Track


class Place(NamedTuple):
    """What makes an instance the same one after a change of topology."""

    id: InstanceId
    host: str
    port: int


class Seed(NamedTuple):
    """What goes on of a model besides its instances."""

    corrections: Mapping[InstanceId, float]
    easing: frozenset[InstanceId]
    levels: Mapping[TierName, LevelTrack]
    frozen_since: Mapping[TierName, float]
    known_tiers: frozenset[TierName]
    spill: SpillState | None
    plan: ModelPlan | None
    forced: Forced | None = None


NOTHING = Seed({}, frozenset(), {}, {}, frozenset(), None, None)


def initial_state(topology: Topology, policy: Policy, now: float) -> FleetState:
    """Return the state at the start of the control plane: everything is presumed healthy.

    Args:
        topology: The fleet as configured.
        policy: The thresholds.
        now: Monotonic seconds.

    Returns:
        A state whose plan is the static one: capacity weights, everything to the first tier.
    """
    models = tuple(
        build(model, policy, now, known={}, newcomer=lambda _: faults.present(now), seed=NOTHING)
        for model in topology.models
    )
    return fleet(topology, models, started_at=now, pending=())


def retarget(state: FleetState, topology: Topology, policy: Policy, now: float) -> FleetState:
    """Return the state for a changed topology or policy; surviving instances keep what is known.

    Args:
        state: The state so far.
        topology: The new fleet.
        policy: The thresholds, which may have changed too.
        now: Monotonic seconds.

    Returns:
        The new state. An instance is the same one when its id and address are; any other one ramps,
        unless the control plane itself has only just started (`RecoveryPolicy.startup_s`). An operator's
        drain is of the id: it goes on at another address.
    """
    known = {place(s.instance): s for _, _, s in _all(state.models)}
    operators = {s.instance.id: s.track.operator for _, _, s in _all(state.models)}
    is_starting = now < state.started_at + policy.recovery.startup_s

    def newcomer(instance_id: InstanceId) -> Track:
        context = Context(instance_id, policy.recovery, now)
        track = faults.present(now) if is_starting else faults.joined(context)
        return faults.drain(track, context, who=operators.get(instance_id))

    before = {model.model.name: model for model in state.models}
    models = tuple(
        build(
            model,
            policy,
            now,
            known=known,
            newcomer=newcomer,
            seed=_seed(before.get(model.name), model),
        )
        for model in topology.models
    )
    kept = {place(s.instance) for _, _, s in _all(models)}
    pending = list(state.pending)
    # First: what has another address now is no longer at the old one, and then there again.
    for model, tier, s in _all(state.models):
        if place(s.instance) not in kept:
            pending.append(events.left(model.model.name, tier.tier.name, s))
    for model, tier, s in _all(models):
        old = known.get(place(s.instance))
        if old is None:
            pending.append(events.joined(model.model.name, tier.tier.name, s))
        else:
            pending += events.of_instance(model.model.name, tier.tier.name, old, s)
    for after in models:
        if after.model.name in before:
            ended = force.rule(before[after.model.name].forced, after.model, after.steps, now).event
            pending += () if ended is None else (ended,)
            pending += publish.plan_events(before[after.model.name].plan, after.plan)
    return fleet(topology, models, started_at=state.started_at, pending=tuple(pending))


def build(
    model: Model,
    policy: Policy,
    now: float,
    *,
    known: Mapping[Place, InstanceState],
    newcomer: Callable[[InstanceId], Track],
    seed: Seed,
) -> ModelState:
    """Build a model's state from what is known about its instances, and its plan.

    Args:
        model: The model as configured.
        policy: The thresholds.
        now: Monotonic seconds.
        known: The states of instances that go on.
        newcomer: Makes the track of any other instance.
        seed: What else goes on.

    Returns:
        A state whose plan fits it.
    """
    steps = []
    for tier in model.tiers:
        instances = tuple(
            _survivor(i, policy, now, known=known, newcomer=newcomer) for i in tier.instances
        )
        state = TierState(
            tier=tier,
            instances=instances,
            corrections=tuple(seed.corrections.get(s.instance.id, 1.0) for s in instances),
            easing=frozenset(),
            eased_at=now,
            level=seed.levels.get(tier.name, LevelTrack()),
            frozen_since=seed.frozen_since.get(tier.name),
            is_known=tier.name in seed.known_tiers,
            shaken_at=-inf,
        )
        still_easing = {n for n, s in enumerate(instances) if s.instance.id in seed.easing}
        steps.append(tiers.step(state, still_easing, policy, now))
    spilled = seed.spill or spill.initial(len(steps))
    ruling = force.rule(seed.forced, model, steps, now)
    spilled, shares, again_at = spill.step(
        spilled, [step.reading for step in steps], policy.spill, now, forced=ruling.position
    )
    shares = force.shares(shares, ruling)
    plan = publish.model_plan(seed.plan, model.name, steps, shares, policy.weights, fits=False)
    due = min([step.deadline for step in steps], default=inf)
    if ruling.forced is not None:
        due = min(due, ruling.forced.until)
    return ModelState(
        model=model,
        tiers=tuple([step.state for step in steps]),
        steps=tuple(steps),
        spill=spilled,
        plan=plan,
        deadline=due if again_at is None else min(due, again_at),
        forced=ruling.forced,
    )


def _seed(before: ModelState | None, after: Model) -> Seed:
    """Take over what does not belong to one instance."""
    if before is None:
        return NOTHING
    same_chain = [t.tier.name for t in before.tiers] == [t.name for t in after.tiers]
    return Seed(
        corrections={
            s.instance.id: correction
            for tier in before.tiers
            for s, correction in zip(tier.instances, tier.corrections, strict=True)
        },
        easing=frozenset(
            tier.instances[position].instance.id
            for tier in before.tiers
            for position in tier.easing
        ),
        levels={tier.tier.name: tier.level for tier in before.tiers},
        frozen_since={
            tier.tier.name: tier.frozen_since
            for tier in before.tiers
            if tier.frozen_since is not None
        },
        known_tiers=frozenset(tier.tier.name for tier in before.tiers if tier.is_known),
        spill=before.spill if same_chain else None,
        plan=before.plan,
        forced=before.forced,
    )


def fleet(
    topology: Topology,
    models: tuple[ModelState, ...],
    *,
    started_at: float,
    pending: tuple[Event, ...],
) -> FleetState:
    """Put models together.

    Args:
        topology: The fleet as configured.
        models: The state of every model, in its order.
        started_at: When the control plane started.
        pending: What the next evaluation shall report.

    Returns:
        The state of the fleet.
    """
    return FleetState(
        topology=topology,
        models=models,
        plans=tuple([model.plan for model in models]),
        index={
            s.instance.id: (number, tier_number, position)
            for number, model in enumerate(models)
            for tier_number, tier in enumerate(model.tiers)
            for position, s in enumerate(tier.instances)
        },
        started_at=started_at,
        deadline=min([model.deadline for model in models], default=inf),
        pending=pending,
    )


def _survivor(
    configured: Instance,
    policy: Policy,
    now: float,
    *,
    known: Mapping[Place, InstanceState],
    newcomer: Callable[[InstanceId], Track],
) -> InstanceState:
    state = known.get(place(configured))
    if state is None:
        return instance.unseen(configured, newcomer(configured.id), policy)
    return instance.adopt(state, configured, policy, now)


def place(configured: Instance) -> Place:
    """Return what identifies an instance."""
    return Place(configured.id, configured.host, configured.port)


def _all(models: Iterable[ModelState]) -> Iterator[tuple[ModelState, TierState, InstanceState]]:
    for model in models:
        for tier in model.tiers:
            for state in tier.instances:
                yield model, tier, state
