"""The fleet at a glance: what `status` and pages show, one document of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xds_server.core.model import InstanceId
from xds_server.core.plan import (
    TIER_WEIGHT_TOTAL,
    ClassPlan,
    EndpointHealth,
    InstancePlan,
    ModelPlan,
    Plan,
    Reason,
    TierPlan,
)
from xds_server.core.sample import Sample


def describe(
    plan: Plan | None, latest: Mapping[InstanceId, Sample], *, is_warm: bool, now: float
) -> dict[str, Any]:
    """Return every model with its tiers, instances and classes.

    Args:
        plan: What was decided last; None before the first decision.
        latest: The newest sample of each instance.
        is_warm: Whether proxies are answered.
        now: The control plane's monotonic clock.

    Returns:
        Plain values. What is not known is None, and a number whose age is not known is not there.
    """
    models = () if plan is None else plan.models
    return {"warm": is_warm, "models": [_model(each, latest, now) for each in models]}


def _model(model: ModelPlan, latest: Mapping[InstanceId, Sample], now: float) -> dict[str, Any]:
    return {
        "model": model.name,
        "tiers": [_tier(each, latest, now) for each in model.tiers],
        "classes": [_class(model, each) for each in model.classes],
    }


def _tier(tier: TierPlan, latest: Mapping[InstanceId, Sample], now: float) -> dict[str, Any]:
    return {
        "tier": tier.name,
        "level": tier.level.value,
        "pressure": tier.pressure,
        "weight": tier.weight,
        "of": TIER_WEIGHT_TOTAL,
        "spill": tier.spill,
        "demand": tier.demand,
        "capacity": tier.capacity,
        **_why(tier.reason),
        "instances": [_instance(each, latest.get(each.id), now) for each in tier.instances],
    }


def _instance(instance: InstancePlan, sample: Sample | None, now: float) -> dict[str, Any]:
    return {
        "instance": instance.id,
        "state": instance.state.value,
        "telemetry": instance.freshness.value,
        "health": instance.health.value,
        "weight": instance.weight if instance.health is EndpointHealth.HEALTHY else 0,
        "ceiling": instance.ceiling,
        "pressure": None if sample is None else instance.pressure,
        "age_s": None if sample is None else round(max(0.0, now - sample.observed_at), 3),
        **_why(instance.reason),
    }


def _class(model: ModelPlan, request_class: ClassPlan) -> dict[str, Any]:
    weights = zip(model.tiers, request_class.weights, strict=True)
    return {
        "class": request_class.name,
        "demand_ratio": request_class.demand_ratio,
        "weights": {tier.name: weight for tier, weight in weights},
        "of": TIER_WEIGHT_TOTAL,
        "is_shed": request_class.is_shed,
        "is_rejected": request_class.is_rejected,
        **_why(request_class.reason),
    }


def _why(reason: Reason) -> dict[str, Any]:
    return {"rule": reason.rule, "sentence": reason.text}
