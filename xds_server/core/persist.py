"""The state as a document that a restarted control plane continues from.

Times are written as ages, since the monotonic clock of the next process has another zero. Telemetry is
not kept: agents send it again within a second, and until then the tier counts as blind and its weights
are frozen. What is kept is what telemetry cannot tell: faults and their remaining holds, drains,
corrections, levels, spill, and the published numbers, so that the first push after a restart says what
the last one before it said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from xds_server.core import assemble, faults, force, hysteresis, instance, spill
from xds_server.core.assemble import Place, Seed
from xds_server.core.levels import LevelTrack
from xds_server.core.model import Instance, InstanceId, Model, Tier, TierName, Topology
from xds_server.core.node import Node
from xds_server.core.plan import (
    EndpointHealth,
    FaultState,
    Freshness,
    InstancePlan,
    Level,
    ModelPlan,
    Plan,
    Reason,
    TierPlan,
)
from xds_server.core.policy import Policy
from xds_server.core.spill import SpillState, TierSpill
from xds_server.core.state import FleetState, Forced, InstanceState, ModelState, TierState
from xds_server.core.track import Context, Track
from xds_server.core.vram import VramWatch

VERSION = 1
_LAST_UNIX_S = 253402300799.0
"""The end of the year 9999: dates have no later one."""
_RESTORED = Reason(rule="restored", text="Restored: the control plane restarted.")


def dump(state: FleetState, plan: Plan | None, now: float) -> dict[str, Any]:
    """Write the state as plain JSON values.

    Args:
        state: The state to keep.
        plan: The plan that proxies were last given; None for the state's own.
        now: Monotonic seconds; everything is written as an age or a remaining time.

    Returns:
        A document that `restore` reads, also in another process.
    """
    document = dump_lazily(state, plan, now)
    return document | {"models": {name: make() for name, make in document["models"].items()}}


def dump_lazily(state: FleetState, plan: Plan | None, now: float) -> dict[str, Any]:
    """Prepare what `dump` writes, with a function in the place of each model's values.

    Whoever writes them down one by one never holds the documents of ten thousand instances at once,
    which the garbage collector would have to walk. The functions may be called in any thread.
    """
    plans = {p.name: p for p in state.plans}
    for given in () if plan is None else plan.models:
        own = plans.get(given.name)
        # A plan from before a change of topology has nothing to say about what changed.
        if own is not None and [t.name for t in own.tiers] == [t.name for t in given.tiers]:
            plans[given.name] = given
    return {
        "version": VERSION,
        "models": {
            model.model.name: partial(_dump_model, model, plans[model.model.name], now)
            for model in state.models
        },
    }


def restore(
    topology: Topology,
    policy: Policy,
    data: Mapping[str, Any],
    now: float,
    *,
    away_s: float = 0.0,
) -> FleetState:
    """Start from a kept state.

    Args:
        topology: The fleet as configured now; what it no longer has is dropped, what is new to it
            starts healthy. An operator's drain goes on at another address.
        policy: The thresholds.
        data: What `dump` wrote.
        now: Monotonic seconds.
        away_s: How long ago that was: an operator's order ends when it was said to.

    Returns:
        The state, with the published weights, fault states and remaining holds of the kept one.

    Raises:
        ValueError: The document is not one of this version; the text names path, value and expectation.
    """
    root = Node("state", data)
    version = root.get("version").integer(low=0)
    if version != VERSION:
        raise ValueError(f"state.version: {version}; expected {VERSION}")
    kept = root.get("models").mapping()
    models = tuple(
        _restore_model(model, kept.get(model.name), policy, now, away_s)
        for model in topology.models
    )
    pending = [
        ruling.event
        for model in models
        if model.model.name in kept
        for order in [_restore_forced(kept[model.model.name], now - away_s)]
        for ruling in [force.rule(order, model.model, model.steps, now)]
        if ruling.event is not None
    ]
    return assemble.fleet(topology, models, started_at=now, pending=tuple(pending))


def _dump_model(model: ModelState, plan: ModelPlan, now: float) -> dict[str, Any]:
    tiers = {}
    for tier, planned, spilled in zip(model.tiers, plan.tiers, model.spill.tiers, strict=True):
        tiers[str(tier.tier.name)] = {
            "level": str(tier.level.level),
            "published_level": str(planned.level),
            "is_known": tier.is_known,
            "frozen_age_s": _age(tier.frozen_since, now),
            "share": planned.share,
            "weight": planned.weight,
            "spill": {
                "published_plan": planned.spill,
                "spill": spilled.spill,
                "published": spilled.published,
                "fill_ratio": spilled.fill_ratio,
                "available_slots": spilled.available_slots,
                "integral": spilled.integral,
            },
            "instances": _dump_instances(tier, planned, now),
        }
    return {
        "demand": model.spill.demand,
        "unseen_ratio": model.spill.unseen_ratio,
        "tiers": tiers,
        "forced": _dump_forced(model.forced, now),
    }


def _dump_forced(forced: Forced | None, now: float) -> dict[str, Any] | None:
    if forced is None:
        return None
    return {
        "tier": str(forced.tier),
        "left_s": max(0.0, forced.until - now),
        "until_unix_s": forced.until_unix_s,
        "who": forced.who,
        "why": forced.why,
    }


def _dump_instances(tier: TierState, plan: TierPlan, now: float) -> dict[str, Any]:
    weights = {p.id: p.weight for p in plan.instances}
    documents: dict[str, Any] = {}
    for state, correction in zip(tier.instances, tier.corrections, strict=True):
        track = state.track
        left_s = track.left_s if track.due_at is None else max(0.0, track.due_at - now)
        documents[str(state.instance.id)] = {
            "host": state.instance.host,
            "port": state.instance.port,
            "weight": weights.get(state.instance.id, 1),
            "correction": correction,
            "slots": state.slots,
            "state": str(track.state),
            "cause": track.cause,
            "detail": track.detail,
            "age_s": max(0.0, now - track.since),
            "stage": track.stage,
            "left_s": left_s,
            "hold_s": track.hold_s,
            "episode": track.episode,
            "relapses": track.relapses,
            "fault_ages_s": [max(0.0, now - at) for at in track.faults],
            "restarts": track.restarts,
            "agent_drains": track.agent_drains,
            "operator": track.operator,
            "vram_tripped": state.vram.latch.on,
            "vram_least": state.vram.least,
            "throttled": state.throttle.on,
        }
    return documents


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def _restore_model(
    model: Model, kept: Node | None, policy: Policy, now: float, away_s: float
) -> ModelState:
    tiers = {} if kept is None else kept.get("tiers").mapping()
    known: dict[Place, InstanceState] = {}
    corrections: dict[InstanceId, float] = {}
    levels: dict[TierName, LevelTrack] = {}
    frozen_since: dict[TierName, float] = {}
    known_tiers: set[TierName] = set()
    operators: dict[InstanceId, str | None] = {}
    spills: list[TierSpill] = []
    plans: list[TierPlan] = []
    for tier in model.tiers:
        node = tiers.get(tier.name)
        if node is None:
            continue
        levels[tier.name] = LevelTrack(level=node.get("level").choice(Level))
        if node.get("is_known").flag():
            known_tiers.add(tier.name)
        age_s = node.get("frozen_age_s").optional_number(low=0.0)
        if age_s is not None:
            frozen_since[tier.name] = now - age_s
        spills.append(_restore_spill(node.get("spill")))
        instances = node.get("instances").mapping()
        published: list[InstancePlan] = []
        for configured in tier.instances:
            document = instances.get(configured.id)
            if document is None:
                continue
            if not _is_same(configured, document):
                operators[configured.id] = document.get("operator").optional_text()
                continue
            state = _restore_instance(configured, document, policy, now)
            known[assemble.place(configured)] = state
            corrections[configured.id] = document.get("correction").number(low=0.0)
            published.append(_published(state, document))
        plans.append(_restore_tier_plan(tier, node, tuple(published)))
    whole = kept is not None and len(plans) == len(model.tiers) == len(tiers)
    seed = Seed(
        corrections=corrections,
        # All of it is blind now; what returns eases by itself.
        easing=frozenset(),
        levels=levels,
        frozen_since=frozen_since,
        known_tiers=frozenset(known_tiers),
        spill=_restore_spills(kept, tuple(spills)) if kept is not None and whole else None,
        plan=ModelPlan(name=model.name, tiers=tuple(plans)) if whole else None,
        forced=None if kept is None else _restore_forced(kept, now - away_s),
    )

    def newcomer(instance_id: InstanceId) -> Track:
        context = Context(instance_id, policy.recovery, now)
        return faults.drain(faults.present(now), context, who=operators.get(instance_id))

    return assemble.build(model, policy, now, known=known, newcomer=newcomer, seed=seed)


def _restore_forced(kept: Node, written_at: float) -> Forced | None:
    node = kept.mapping().get("forced")
    if node is None or node.value is None:
        return None
    return Forced(
        tier=TierName(node.get("tier").text()),
        until=written_at + node.get("left_s").number(low=0.0),
        until_unix_s=node.get("until_unix_s").number(low=0.0, high=_LAST_UNIX_S),
        who=node.get("who").text(),
        why=node.get("why").text(),
    )


def _restore_tier_plan(tier: Tier, node: Node, published: tuple[InstancePlan, ...]) -> TierPlan:
    return TierPlan(
        name=tier.name,
        level=node.get("published_level").choice(Level),
        pressure=None,
        share=node.get("share").number(low=0.0, high=1.0),
        weight=node.get("weight").integer(low=0),
        spill=node.get("spill").get("published_plan").number(low=0.0, high=1.0),
        demand=None,
        capacity=None,
        reason=_RESTORED,
        instances=published,
    )


def _restore_spills(kept: Node, tiers: tuple[TierSpill, ...]) -> SpillState:
    return replace(
        spill.initial(len(tiers)),
        tiers=tiers,
        demand=kept.get("demand").optional_number(low=0.0),
        unseen_ratio=kept.get("unseen_ratio").number(low=0.0, high=1.0),
    )


def _restore_spill(node: Node) -> TierSpill:
    return TierSpill(
        spill=node.get("spill").number(low=0.0, high=1.0),
        published=node.get("published").number(low=0.0, high=1.0),
        fill_ratio=node.get("fill_ratio").number(low=0.0),
        available_slots=node.get("available_slots").number(low=0.0),
        integral=node.get("integral").number(),
    )


def _is_same(configured: Instance, node: Node) -> bool:
    host, port = node.get("host").text(), node.get("port").integer(low=0)
    return (configured.host, configured.port) == (host, port)


def _restore_instance(
    configured: Instance, node: Node, policy: Policy, now: float
) -> InstanceState:
    state = node.get("state").choice(FaultState)
    left_s = node.get("left_s").optional_number(low=0.0)
    quarantined = state is FaultState.QUARANTINED
    track = Track(
        state=state,
        cause=node.get("cause").text(),
        detail=node.get("detail").text(),
        since=now - node.get("age_s").number(low=0.0),
        stage=node.get("stage").integer(low=-1),
        # Only a quarantine runs by itself; every other timer goes on with the next fresh evidence.
        due_at=now + (left_s or 0.0) if quarantined else None,
        left_s=None if quarantined else left_s,
        hold_s=node.get("hold_s").number(low=0.0),
        episode=node.get("episode").integer(low=0),
        relapses=node.get("relapses").integer(low=0),
        faults=tuple(now - age.number(low=0.0) for age in node.get("fault_ages_s").items()),
        restarts=node.get("restarts").optional_integer(low=0),
        agent_drains=node.get("agent_drains").flag(),
        operator=node.get("operator").optional_text(),
    )
    unseen = instance.unseen(configured, track, policy)
    return replace(
        unseen,
        slots=configured.capacity or node.get("slots").optional_number(low=0.0),
        vram=VramWatch(
            latch=hysteresis.settled(on=node.get("vram_tripped").flag()),
            least=node.get("vram_least").optional_number(low=0.0, high=1.0),
        ),
        throttle=hysteresis.settled(on=node.get("throttled").flag()),
    )


def _published(state: InstanceState, node: Node) -> InstancePlan:
    ceiling = state.ceiling
    return InstancePlan(
        id=state.instance.id,
        state=state.track.state,
        freshness=Freshness.BLIND,
        ceiling=ceiling,
        weight=node.get("weight").integer(low=1),
        health=EndpointHealth.HEALTHY if ceiling > 0.0 else EndpointHealth.UNHEALTHY,
        pressure=None,
        basis=_RESTORED,
    )
