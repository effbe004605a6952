"""The fleet that the xDS figures are measured with, and plans for it.

Ten models of three tiers give a route table of ten weighted routes; thirteen instances in each of the
twenty engine tiers make all endpoints together about 22 KB, the larger response of the comparison with
go-control-plane.
"""

from __future__ import annotations

from tests.fakes.plans import a_model_plan, a_static_tier
from xds_server.core.model import (
    Instance,
    InstanceId,
    Model,
    ModelName,
    Tier,
    TierName,
    Topology,
)
from xds_server.core.plan import TIER_WEIGHT_TOTAL, ModelPlan, Plan


def topology(*, models: int = 10, per_tier: int = 13) -> Topology:
    """Return models with a primary, a fallback and a static tier each."""
    made = []
    number = 0
    for index in range(models):
        tiers = []
        for name in ("primary", "fallback"):
            instances = []
            for _ in range(per_tier):
                instances.append(
                    Instance(
                        id=InstanceId(f"i{number}"),
                        host=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
                        port=8000,
                        capacity=40,
                    )
                )
                number += 1
            tiers.append(
                Tier(name=TierName(name), serves=f"{name}-{index}", instances=tuple(instances))
            )
        tiers.append(a_static_tier())
        made.append(
            Model(name=ModelName(f"model-{index}"), tiers=tuple(tiers), prefix=f"/m{index}/")
        )
    return Topology(models=tuple(made))


def model_plan(model: Model, *, tier_weights: tuple[int, int, int], weight: int) -> ModelPlan:
    """Return a plan with the given tier weights (adding up to 1,000) and endpoint weight."""
    assert sum(tier_weights) == TIER_WEIGHT_TOTAL
    return a_model_plan(model, tier_weights, otherwise=weight)


class Plans:
    """A plan that is moved one step at a time."""

    def __init__(self, fleet: Topology) -> None:
        self._fleet = fleet
        self._step = 0
        self.plan = Plan(
            models=tuple(self._model(model) for model in fleet.models), next_deadline=None
        )

    def _model(self, model: Model) -> ModelPlan:
        share = 100 + self._step % 800
        return model_plan(model, tier_weights=(1000 - share, share, 0), weight=1000)

    def move_tier(self) -> Plan:
        """Change the tier weights of one model."""
        self._step += 1
        first, *rest = self.plan.models
        del first
        self.plan = Plan(models=(self._model(self._fleet.models[0]), *rest), next_deadline=None)
        return self.plan

    def move_endpoints(self) -> Plan:
        """Change every endpoint weight of every model, and no tier weight."""
        self._step += 1
        models = []
        for model, old in zip(self._fleet.models, self.plan.models, strict=True):
            first, second, third = (tier.weight for tier in old.tiers)
            models.append(
                model_plan(
                    model,
                    tier_weights=(first, second, third),
                    weight=1000 + self._step % 500,
                )
            )
        self.plan = Plan(models=tuple(models), next_deadline=None)
        return self.plan
