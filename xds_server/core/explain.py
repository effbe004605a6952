"""Why a model, a tier or an instance is given what it is given: the numbers, the rule, the weight."""

from __future__ import annotations

from typing import Any

from xds_server.core.nearest import nearest, shown, some
from xds_server.core.plan import (
    FORCED,
    TIER_WEIGHT_TOTAL,
    ClassPlan,
    FaultState,
    InstancePlan,
    ModelPlan,
    Plan,
    Reason,
    TierPlan,
)
from xds_server.core.track import PROXY_CAUSES

_EVIDENCE = "A fresh sample that says the engine is up starts the ramp at its first stage."
_DOUBTED = (
    "Fresh samples that say the engine is up, for one hold, start the ramp at its first stage; "
    "without an agent that can tell, one hold alone does."
)
_STAGES = "Healthy and fresh samples until the hold of this stage is over; a fault ends it and doubles the hold."
_LOAD = "Its pressure (KV usage plus queue) moving against the mean of its tier."
_TELEMETRY = "A fresh sample from its agent."
_SPILL = "Demand, the tier's capacity (faults, completions) or its queue changing."
_CLASS = "The tiers' shares, or the classes' shares of the requests, changing."
_CHANGES = {
    "load_above_mean": _LOAD,
    "load_below_mean": _LOAD,
    "load_balanced": _LOAD,
    "load_unknown": "A sample with KV usage, or with running requests.",
    "telemetry_hold": _TELEMETRY,
    "telemetry_blind": _TELEMETRY,
    "telemetry_easing": "Time: the correction moves a little every second.",
    "tier_frozen": "Telemetry from at least half of the tier's instances.",
    "vram_pressure": "GPU memory below its trip point, for as long as it takes to clear.",
    "gpu_throttled": "The hardware ending its throttling.",
    "agent_drain": "The agent saying that it no longer drains.",
    "operator_drain": "The operator taking the drain back.",
    "no_capacity": "An instance of the tier becoming able to take requests.",
    "restored": _TELEMETRY,
    FORCED: "The time of the order being over, `unforce`, or the tier becoming unable to take requests.",
}


_GONE = frozenset({FaultState.DOWN, FaultState.QUARANTINED})


class UnknownSubjectError(LookupError):
    """There is no such model, tier or instance."""


def explain(plan: Plan, subject: str) -> dict[str, Any]:
    """Explain one model (`chat`), tier (`chat/primary`), class (`chat/core`) or instance (`a100-0`).

    Args:
        plan: The plan in force.
        subject: A model's name, `model/tier`, `model/class`, or an instance's id.

    Returns:
        Plain JSON values: what it is, the rule that decided, the sentence, the inputs, the calculation,
        the resulting weight and what would change it.

    Raises:
        UnknownSubjectError: Nothing is called so; the text lists what there is.
    """
    for model in plan.models:
        if model.name == subject:
            return _model(model)
        for tier in model.tiers:
            if f"{model.name}/{tier.name}" == subject:
                return _tier(model, tier)
            for instance in tier.instances:
                if instance.id == subject:
                    return _instance(model, tier, instance)
        for request_class in model.classes:
            if f"{model.name}/{request_class.name}" == subject:
                return _class(model, request_class)
    models = [str(model.name) for model in plan.models]
    tiers = [f"{model.name}/{tier.name}" for model in plan.models for tier in model.tiers]
    classes = [f"{model.name}/{each.name}" for model in plan.models for each in model.classes]
    instances = [str(i.id) for m in plan.models for t in m.tiers for i in t.instances]
    near = nearest(subject, [*models, *tiers, *classes, *instances])
    expected = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"expected a model ({some(models)}), a tier ({some(tiers)}) or an instance ({some(instances)})"
    )
    raise UnknownSubjectError(f"subject: {shown(subject)}; {expected}")


def _model(model: ModelPlan) -> dict[str, Any]:
    shares = ", ".join(f"{tier.name} {tier.weight / TIER_WEIGHT_TOTAL:.1%}" for tier in model.tiers)
    return {
        "subject": model.name,
        "kind": "model",
        "rule": model.tiers[0].reason.rule,
        "sentence": f"Requests go to {shares}. First tier: {model.tiers[0].reason.text}",
        "changes_when": _SPILL,
        "tiers": [_tier(model, tier) for tier in model.tiers],
        **({"classes": [_class(model, each) for each in model.classes]} if model.classes else {}),
    }


def _class(model: ModelPlan, request_class: ClassPlan) -> dict[str, Any]:
    weights = {
        str(tier.name): weight
        for tier, weight in zip(model.tiers, request_class.weights, strict=True)
    }
    shares = ", ".join(
        f"{name} {weight / TIER_WEIGHT_TOTAL:.1%}" for name, weight in weights.items()
    )
    refused = "; all of it is rejected for now" if request_class.is_rejected else ""
    return {
        "subject": f"{model.name}/{request_class.name}",
        "kind": "class",
        **_reason(request_class.reason, _CLASS),
        "demand_ratio": request_class.demand_ratio,
        "weights": weights,
        "of": TIER_WEIGHT_TOTAL,
        "is_rejected": request_class.is_rejected,
        "calculation": (
            f"{request_class.demand_ratio:.1%} of the model's requests; of them go to {shares}{refused}"
        ),
    }


def _tier(model: ModelPlan, tier: TierPlan) -> dict[str, Any]:
    return {
        "subject": f"{model.name}/{tier.name}",
        "kind": "tier",
        "level": str(tier.level),
        **_reason(tier.reason, _SPILL),
        "pressure": tier.pressure,
        "demand": tier.demand,
        "capacity": tier.capacity,
        "share": tier.share,
        "spill": tier.spill,
        "weight": tier.weight,
        "of": TIER_WEIGHT_TOTAL,
        "calculation": (
            f"{tier.share:.1%} of the model's requests = weight {tier.weight} of {TIER_WEIGHT_TOTAL}; "
            f"of what reaches it, it passes on {tier.spill:.1%}"
        ),
        "instances": [
            {
                "id": instance.id,
                "state": str(instance.state),
                "weight": instance.effective_weight,
                "rule": instance.rule,
            }
            for instance in tier.instances
        ],
    }


def _instance(model: ModelPlan, tier: TierPlan, instance: InstancePlan) -> dict[str, Any]:
    given = sum(i.effective_weight for i in tier.instances)
    weight = instance.effective_weight
    within = weight / given if given else 0.0
    inputs = instance.reason.inputs
    terms = [f"ceiling {instance.ceiling:.0%}"]
    slots, correction = inputs.get("slots"), inputs.get("correction")
    if isinstance(slots, int | float):
        terms.insert(0, f"capacity {slots:g}")
    if isinstance(correction, float):
        terms.append(f"correction {correction:.2f}")
    return {
        "subject": instance.id,
        "kind": "instance",
        "model": model.name,
        "tier": tier.name,
        "state": str(instance.state),
        "telemetry": str(instance.freshness),
        "health": str(instance.health),
        **_reason(instance.reason, _changes_of_fault(instance)),
        # What an engine said last before it was gone has no age that anybody knows.
        "pressure": None if instance.state in _GONE else instance.pressure,
        "ceiling": instance.ceiling,
        "weight": weight,
        "calculation": (
            f"{' x '.join(terms)} = weight {weight}, {within:.1%} of its tier, "
            f"{within * tier.share:.1%} of the model"
        ),
    }


def changes_when(part: TierPlan | InstancePlan) -> str:
    """Say what would change what a tier or an instance is given."""
    otherwise = _SPILL if isinstance(part, TierPlan) else _changes_of_fault(part)
    return _CHANGES.get(part.reason.rule, otherwise)


def _changes_of_fault(instance: InstancePlan) -> str:
    if instance.ceiling > 0.0:
        hold_s = instance.reason.inputs.get("hold_s")
        return _STAGES if hold_s is None else f"{_STAGES} The hold of this ramp is {hold_s:.1f} s."
    return _DOUBTED if instance.rule in PROXY_CAUSES else _EVIDENCE


def _reason(reason: Reason, otherwise: str) -> dict[str, Any]:
    return {
        "rule": reason.rule,
        "sentence": reason.text,
        "inputs": dict(reason.inputs),
        "changes_when": _CHANGES.get(reason.rule, otherwise),
    }
