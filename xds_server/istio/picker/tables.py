"""The plan as requests are picked by it: per model its tiers, per tier the endpoints that take new requests.

Made anew for what changed in a plan only, so that ten thousand instances cost nothing while they stay as they are.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from xds_server.config.addresses import format_address
from xds_server.core.model import ClassName, InstanceId, Model, ModelName, Tier, TierName, Topology
from xds_server.core.plan import ClassPlan, EndpointHealth, ModelPlan, Plan, TierPlan
from xds_server.istio.picker.body import AS_IT_IS, Rewrite
from xds_server.resources.bodies.rewrite import is_rewritten, renames


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTable:
    """One tier: what may be picked from it now."""

    name: TierName
    index: int
    """Its place in the chain; 0 = first."""
    serves: str
    rule: str
    """Why the tier has its weight: the name of the rule."""
    is_static: bool
    rewrite: Rewrite
    """What bodies become for it. Between tiers where it is equal a retry may move."""
    endpoints: tuple[str, ...] = ()
    """`ip:port` of the instances that take new requests."""
    weights: tuple[int, ...] = ()
    """Their weights, each at least 1."""
    bounds: tuple[int, ...] = ()
    """The sums of the weights so far: a number below the last one is drawn, and falls to one endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How requests are divided over the tiers."""

    bounds: tuple[int, ...]
    """The sums of the tiers' weights so far."""
    is_rejected: bool = False
    """None of these requests is served for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTable:
    """One model: its tiers in chain order."""

    model: Model
    tiers: tuple[TierTable, ...]
    shares: Shares
    """Of requests that are in no class."""
    classes: Mapping[ClassName, Shares]
    reads_bodies: bool
    """Whether some tier gets another body than the client sent."""
    tier_of: Mapping[str, int]
    """Endpoint -> the tier that it is in, also while it takes no new requests."""


@dataclass(slots=True)
class Tables:
    """The tables of every model."""

    by_model: dict[ModelName, ModelTable] = field(default_factory=dict)
    topology: Topology | None = None
    _plans: dict[ModelName, ModelPlan] = field(default_factory=dict)
    _tiers: dict[tuple[ModelName, TierName], tuple[TierPlan, TierTable]] = field(
        default_factory=dict
    )

    def take(self, topology: Topology, plan: Plan) -> None:
        """Go over to a plan. A model that it does not name keeps what it had."""
        if topology is not self.topology:
            self.topology = topology
            self._plans.clear()
            self._tiers.clear()
            names = {each.name for each in topology.models}
            self.by_model = {name: old for name, old in self.by_model.items() if name in names}
        models = {each.name: each for each in topology.models}
        for planned in plan.models:
            model = models.get(planned.name)
            if model is not None and self._plans.get(planned.name) is not planned:
                self.by_model[planned.name] = self._model(model, planned)
                self._plans[planned.name] = planned

    def _model(self, model: Model, plan: ModelPlan) -> ModelTable:
        plans = {each.name: each for each in plan.tiers}
        return ModelTable(
            model=model,
            tiers=tuple(
                self._tier(model, index, plans.get(tier.name))
                for index, tier in enumerate(model.tiers)
            ),
            shares=_shares(
                plans[tier.name].weight if tier.name in plans else 0 for tier in model.tiers
            ),
            classes={each.name: _class_shares(each) for each in plan.classes},
            reads_bodies=any(is_rewritten(model, tier) for tier in model.tiers),
            tier_of={
                format_address(instance.host, instance.port): index
                for index, tier in enumerate(model.tiers)
                for instance in tier.instances
            },
        )

    def _tier(self, model: Model, index: int, plan: TierPlan | None) -> TierTable:
        tier = model.tiers[index]
        key = (model.name, tier.name)
        kept = self._tiers.get(key)
        if plan is None:
            return TierTable(
                name=tier.name,
                index=index,
                serves=tier.serves,
                rule="",
                is_static=tier.is_static,
                rewrite=AS_IT_IS,
            )
        if kept is None or kept[0] is not plan:
            kept = self._tiers[key] = plan, _tier(model, index, plan)
        return kept[1]


def _tier(model: Model, index: int, plan: TierPlan) -> TierTable:
    tier = model.tiers[index]
    pickable = dict(_pickable(tier, plan))
    return TierTable(
        name=tier.name,
        index=index,
        serves=tier.serves,
        rule=plan.reason.rule,
        is_static=tier.is_static,
        rewrite=rewrite_of(model, tier),
        endpoints=tuple(pickable),
        weights=tuple(pickable.values()),
        bounds=tuple(accumulate(pickable.values())),
    )


def rewrite_of(model: Model, tier: Tier) -> Rewrite:
    """Return what becomes of bodies that go to a tier."""
    if not is_rewritten(model, tier):
        return AS_IT_IS
    return Rewrite(model=tier.serves if renames(model, tier) else None, max_tokens=tier.max_tokens)


def _pickable(tier: Tier, plan: TierPlan) -> Iterator[tuple[str, int]]:
    """Yield the endpoints that take new requests: those that proxies are told to be healthy."""
    addresses: dict[InstanceId, str] = {
        each.id: format_address(each.host, each.port) for each in tier.instances
    }
    for each in plan.instances:
        if each.health is EndpointHealth.HEALTHY and each.ceiling > 0.0 and each.id in addresses:
            yield addresses[each.id], max(1, each.weight)


def _shares(weights: Iterable[int]) -> Shares:
    return Shares(bounds=tuple(accumulate(weights)))


def _class_shares(plan: ClassPlan) -> Shares:
    return Shares(bounds=tuple(accumulate(plan.weights)), is_rejected=plan.is_rejected)
