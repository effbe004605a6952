"""What an order will do that whoever gives it should know, in a sentence; empty = nothing worth saying."""

from __future__ import annotations

from collections.abc import Iterator

from xds_server.core.model import InstanceId, ModelName
from xds_server.core.plan import FORCED, EndpointHealth, ModelPlan, Plan, TierPlan
from xds_server.fleet import Fleet


def of_drain(fleet: Fleet, instance: InstanceId) -> str:
    """Say what draining an instance will do beside emptying it."""
    by = fleet.drained_by(instance)
    return last_of(fleet.plan, instance) if by is None else f"It was drained already: {by}."


def last_of(plan: Plan | None, instance: InstanceId) -> str:
    """Say where requests go when the last instance of a tier that takes any is drained."""
    for model, position, tier in _tiers(plan):
        takers = [each.id for each in tier.instances if each.health is EndpointHealth.HEALTHY]
        if takers == [instance]:
            return f"It is the last of {model.name}/{tier.name} that takes requests: {_next(model, position)}."
    return ""


def of_undrain(fleet: Fleet, instance: InstanceId) -> str:
    """Say what taking a drain back will not do."""
    if fleet.drained_by(instance) is None:
        return "No operator drained it: nothing changes."
    return ""


def of_force(plan: Plan | None, model: ModelName) -> str:
    """Say whose order a new one takes the place of."""
    for each in () if plan is None else plan.models:
        reason = each.tiers[0].reason
        if each.name == model and reason.rule == FORCED:
            inputs = reason.inputs
            return (
                f"It takes the place of the order of {inputs['who']}: "
                f"{inputs['tier']} until {inputs['until']}, {inputs['why']}."
            )
    return ""


def _next(model: ModelPlan, position: int) -> str:
    for tier in model.tiers[position + 1 :]:
        if not tier.instances or any(
            each.health is EndpointHealth.HEALTHY for each in tier.instances
        ):
            return f"they go to {tier.name}"
    return "no tier after it can take them, and requests fail"


def _tiers(plan: Plan | None) -> Iterator[tuple[ModelPlan, int, TierPlan]]:
    for model in () if plan is None else plan.models:
        for position, tier in enumerate(model.tiers):
            yield model, position, tier
