"""The fleet at a glance: what `status` and pages show, one document of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xds_server.core.explain import changes_when
from xds_server.core.model import InstanceId
from xds_server.core.plan import (
    TIER_WEIGHT_TOTAL,
    ClassPlan,
    InstancePlan,
    ModelPlan,
    Plan,
    Reason,
    TierPlan,
)
from xds_server.core.sample import Sample
from xds_server.xds.syncz import ProxyStatus, SyncState, worst


def describe(
    plan: Plan | None,
    latest: Mapping[InstanceId, Sample],
    *,
    facts: Mapping[str, Any],
    proxies: Iterable[ProxyStatus],
    is_warm: bool,
    now: float,
) -> dict[str, Any]:
    """Return every model with its tiers, instances and classes, and what else a person must know.

    Args:
        plan: What was decided last; None before the first decision.
        latest: The newest sample of each instance.
        facts: What the live page says above everything else.
        proxies: How every stream stands.
        is_warm: Whether proxies are answered.
        now: The control plane's monotonic clock.

    Returns:
        Plain values. What is not known is None, and a number whose age is not known is not there.
    """
    models = () if plan is None else plan.models
    return {
        "unix_s": facts["unix_s"],
        "warm": is_warm,
        "not_ready": facts["not_ready"],
        "config_valid": facts["config_valid"],
        "history_trouble": facts["history_trouble"],
        "stale_s": facts["stale_s"],
        "proxies": _proxies(proxies),
        "models": [_model(each, latest, now) for each in models],
    }


def known_pressure(instance: InstancePlan, sample: Sample | None) -> float | None:
    """Return the pressure where the last sample says a load; else its age would be that of another one."""
    if sample is None or (sample.engine.kv_ratio is None and sample.engine.running is None):
        return None
    return instance.pressure


def _proxies(statuses: Iterable[ProxyStatus]) -> dict[str, Any]:
    states = {each.proxy.id: worst(kind.state for kind in each.types) for each in statuses}
    refusing = [name for name, state in states.items() if state is SyncState.ERROR]
    return {
        "connected": len(states),
        "behind": sum(state is SyncState.STALE for state in states.values()),
        "refusing": len(refusing),
        "refusing_first": refusing[:3],
    }


def _model(model: ModelPlan, latest: Mapping[InstanceId, Sample], now: float) -> dict[str, Any]:
    return {
        "model": model.name,
        "tiers": [_tier(each, latest, now) for each in model.tiers],
        "classes": [_class(model, each) for each in model.classes],
    }


def _tier(tier: TierPlan, latest: Mapping[InstanceId, Sample], now: float) -> dict[str, Any]:
    total = sum(each.effective_weight for each in tier.instances)
    part = tier.weight / TIER_WEIGHT_TOTAL / total if total else 0.0
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
        "changes_when": changes_when(tier),
        "instances": [_instance(each, latest.get(each.id), part, now) for each in tier.instances],
    }


def _instance(
    instance: InstancePlan, sample: Sample | None, part: float, now: float
) -> dict[str, Any]:
    return {
        "instance": instance.id,
        "state": instance.state.value,
        "telemetry": instance.freshness.value,
        "health": instance.health.value,
        "weight": instance.effective_weight,
        "share": round(part * instance.effective_weight, 6),
        "ceiling": instance.ceiling,
        "pressure": known_pressure(instance, sample),
        "running": None if sample is None else sample.engine.running,
        "age_s": None if sample is None else round(max(0.0, now - sample.observed_at), 3),
        **_why(instance.reason),
        "changes_when": changes_when(instance),
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
