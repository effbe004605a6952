"""RDS in place: one route table whose numbers follow the plan.

A plan only changes weights and reasons; everything else was authored by `routes` before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xds_server.core.model import Model, ModelName, TierName
from xds_server.core.plan import TIER_WEIGHT_TOTAL, ModelPlan, TierPlan
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.capability import Capability
from xds_server.resources.names import ROUTE_CONFIG_NAME
from xds_server.resources.proto import (
    UINT32_MAX,
    Route,
    RouteConfiguration,
    WeightedCluster,
    serialize,
    to_upb,
    typed,
)
from xds_server.resources.routes import group_by_domains, members, model_routes
from xds_server.resources.snapshot import Resource


@dataclass(slots=True)
class _Split:
    """The weighted clusters of one model, in all of its routes."""

    tiers: tuple[TierName, ...]
    chain: tuple[TierName, ...]
    occurrences: list[Sequence[WeightedCluster.ClusterWeight]]
    numbers: tuple[tuple[int, str], ...] = ()


class RouteTable:
    """The route configuration, patched in place. Not for use by two threads at once."""

    def __init__(
        self, models: Sequence[Model], failures: FailurePolicy, capability: Capability
    ) -> None:
        authored: dict[ModelName, list[Route]] = {}
        self._splits: dict[ModelName, _Split] = {}
        for model in models:
            reachable = members(model, capability)
            if not reachable:
                continue
            authored[model.name] = model_routes(model, failures, capability)
            self._splits[model.name] = _Split(
                tiers=tuple(tier.name for tier in reachable),
                chain=tuple(tier.name for tier in model.tiers),
                occurrences=[],
            )
        config = typed.route.RouteConfiguration(
            name=ROUTE_CONFIG_NAME, ignore_port_in_host_matching=True
        )
        self._table = to_upb(RouteConfiguration, config)
        needs: set[str] = set()
        routed = [model for model in models if model.name in authored]
        for domains, sharing in group_by_domains(routed).items():
            host = self._table.virtual_hosts.add(name=domains[0], domains=domains)
            for model in sharing:
                for shape in authored[model.name]:
                    route = host.routes.add()
                    route.CopyFrom(shape)
                    if not route.route.HasField("weighted_clusters"):  # a strict route
                        needs.add(route.route.cluster)
                        continue
                    clusters = route.route.weighted_clusters.clusters
                    self._splits[model.name].occurrences.append(clusters)
                    needs.update(each.name for each in clusters)
        self._needs = frozenset(needs)
        self._resource: Resource | None = None

    def apply(self, plan: ModelPlan) -> None:
        """Set a model's weights and reasons."""
        split = self._splits.get(plan.name)
        if split is None:
            return
        numbers = _numbers(plan, split)
        if numbers == split.numbers:
            return
        split.numbers = numbers
        for clusters in split.occurrences:
            for cluster, (weight, reason) in zip(clusters, numbers, strict=True):
                cluster.weight.value = weight
                for header in cluster.response_headers_to_add:
                    header.header.value = reason
        self._resource = None

    def resource(self) -> Resource:
        """Return the table as it is now; the same object while nothing changes."""
        if self._resource is None:
            self._resource = Resource.of(ROUTE_CONFIG_NAME, serialize(self._table), self._needs)
        return self._resource


def _numbers(plan: ModelPlan, split: _Split) -> tuple[tuple[int, str], ...]:
    """Return weight and reason per member.

    A route of which nothing may be sent anywhere is refused by proxies, together with every other
    model's; then the first chain gets all, and Envoy walks down from there by itself.
    """
    by_name = {tier.name: tier for tier in plan.tiers}
    weights = positive_sum([by_name[name].weight for name in split.tiers])
    reasons = _reasons(by_name, split.chain)
    return tuple(
        (weight, reasons[name] if weight else "")
        for name, weight in zip(split.tiers, weights, strict=True)
    )


def _reasons(
    by_name: Mapping[TierName, TierPlan], chain: Sequence[TierName]
) -> dict[TierName, str]:
    """A tier gets requests because of what the tier above it says about itself."""
    reasons = {chain[0]: ""}
    for above, name in pairwise(chain):
        reasons[name] = headers.literal(by_name[above].reason.rule)
    return reasons


def positive_sum(weights: Sequence[int]) -> list[int]:
    """Return weights that Envoy accepts: none below zero, a sum of at least 1 and at most uint32."""
    ceiling = UINT32_MAX // max(1, len(weights))
    result = [min(max(0, weight), ceiling) for weight in weights]
    if not any(result):
        result[0] = TIER_WEIGHT_TOTAL
    return result
