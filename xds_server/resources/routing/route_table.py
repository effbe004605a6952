"""RDS in place: one route table whose numbers follow the plan.

A plan only changes weights and reasons; everything else was authored by `routes` before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xds_server.core.model import Model, ModelName, RequestClass, TierName, Topology
from xds_server.core.plan import TIER_WEIGHT_TOTAL, ClassPlan, ModelPlan, TierPlan
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.capability import Capability
from xds_server.resources.limits.limit_routes import LimitRoutes
from xds_server.resources.names import ROUTE_CONFIG_NAME
from xds_server.resources.proto import (
    UINT32_MAX,
    Route,
    RouteConfiguration,
    VirtualHost,
    WeightedCluster,
    serialize,
    to_upb,
    typed,
)
from xds_server.resources.routing.model_list import longest_body, model_list_routes
from xds_server.resources.routing.model_routing import (
    conditions,
    models_of_the_unread,
    not_found_routes,
    reachable_models,
    unread,
)
from xds_server.resources.routing.request_classes import (
    SHED,
    in_order,
    rejection,
    set_rejecting,
    sheds_any,
)
from xds_server.resources.routing.routes import group_by_domains, members, model_routes
from xds_server.resources.snapshot import Resource
from xds_server.resources.static.static_tier import BODY_LIMIT_BYTES


@dataclass(slots=True)
class _Split:
    """The weighted clusters of one model, or of one class of its requests, in all of its routes."""

    tiers: tuple[TierName, ...]
    chain: tuple[TierName, ...]
    request_class: RequestClass | None
    authored: list[Route]
    occurrences: list[Sequence[WeightedCluster.ClusterWeight]] = field(default_factory=list)
    rejections: list[Route] = field(default_factory=list)
    numbers: tuple[tuple[int, str], ...] = ()
    is_shed: bool = False

    @property
    def class_name(self) -> str:
        """The class's name; empty without classes."""
        return "" if self.request_class is None else self.request_class.name

    @property
    def needs(self) -> Iterator[str]:
        """The clusters that its routes name."""
        for route in self.authored:
            if route.route.HasField("weighted_clusters"):
                yield from (each.name for each in route.route.weighted_clusters.clusters)
            else:  # a strict route
                yield route.route.cluster


class RouteTable:
    """The route configuration, patched in place. Not for use by two threads at once."""

    def __init__(
        self,
        topology: Topology,
        failures: FailurePolicy,
        capability: Capability,
        *,
        limits: LimitRoutes | None = None,
    ) -> None:
        self._splits: dict[ModelName, list[_Split]] = {}
        for model in topology.models:
            splits = _author(model, topology.classes, failures, capability=capability)
            if splits:
                self._splits[model.name] = splits
        config = typed.route.RouteConfiguration(
            name=ROUTE_CONFIG_NAME, ignore_port_in_host_matching=True
        )
        self._table = to_upb(RouteConfiguration, config)
        needs: set[str] = set()
        routed = [model for model in topology.models if model.name in self._splits]
        for domains, sharing in group_by_domains(routed).items():
            host = self._table.virtual_hosts.add(name=domains[0], domains=domains)
            if topology.lists_models and capability is not Capability.GRPC:
                host.routes.extend(model_list_routes(sharing))
            for model in reachable_models(sharing, capability):
                if limits is not None:
                    host.routes.extend(limits.refusals(model, conditions(model)))
                self._place(model, host, limits)
                needs.update(each for split in self._splits[model.name] for each in split.needs)
            if capability is not Capability.GRPC:
                for model in models_of_the_unread(sharing):
                    self._place(model, host, limits, are_unread=True)
            host.routes.extend(not_found_routes(sharing, capability))
        longest = longest_body(self._table)
        if longest > BODY_LIMIT_BYTES:
            self._table.max_direct_response_body_size_bytes.value = longest
        self._needs = frozenset(needs)
        self._resource: Resource | None = None

    def _place(
        self,
        model: Model,
        host: VirtualHost,
        limits: LimitRoutes | None,
        *,
        are_unread: bool = False,
    ) -> None:
        for split in self._splits[model.name]:
            for route in _place(split, host, are_unread=are_unread):
                if limits is not None:
                    limits.mark(route, model, split.class_name)

    def apply(self, plan: ModelPlan) -> None:
        """Set a model's weights and reasons."""
        for split in self._splits.get(plan.name, ()):
            given = _class_plan(plan, split.request_class)
            is_shed = given is not None and given.is_shed
            if is_shed != split.is_shed:
                split.is_shed = is_shed
                for route in split.rejections:
                    set_rejecting(route, rejecting=is_shed)
                self._resource = None
            numbers = _numbers(plan, split, given)
            if numbers == split.numbers:
                continue
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


def _author(
    model: Model,
    classes: Sequence[RequestClass],
    failures: FailurePolicy,
    *,
    capability: Capability,
) -> list[_Split]:
    """Author a model's routes, for each class of requests apart, in the order in which they match."""
    reachable = members(model, capability)
    if not reachable:
        return []
    return [
        _Split(
            tiers=tuple(tier.name for tier in reachable),
            chain=tuple(tier.name for tier in model.tiers),
            request_class=each,
            authored=model_routes(model, failures, capability, each),
        )
        for each in in_order(classes, capability) or (None,)
    ]


def _place(split: _Split, host: VirtualHost, *, are_unread: bool = False) -> Iterator[Route]:
    """Add the routes of a split, or their `unread` twins, to a virtual host; yield those that lead to a cluster."""
    request_class = split.request_class
    authored = [unread(each) for each in split.authored] if are_unread else split.authored
    if request_class is not None and sheds_any([request_class]):
        rejecting = host.routes.add()
        rejecting.CopyFrom(rejection(authored[-1], request_class))
        split.rejections.append(rejecting)
    for shape in authored:
        route = host.routes.add()
        route.CopyFrom(shape)
        if route.route.HasField("weighted_clusters"):
            split.occurrences.append(route.route.weighted_clusters.clusters)
        yield route


def _class_plan(plan: ModelPlan, request_class: RequestClass | None) -> ClassPlan | None:
    """Return what the plan says of a class; a plan without classes gives all the tiers' own weights."""
    if request_class is None:
        return None
    return next((each for each in plan.classes if each.name == request_class.name), None)


def _numbers(
    plan: ModelPlan, split: _Split, given: ClassPlan | None
) -> tuple[tuple[int, str], ...]:
    """Return weight and reason per member.

    A route of which nothing may be sent anywhere is refused by proxies, together with every other
    model's; then the first chain gets all, and Envoy walks down from there by itself.
    """
    by_name = {tier.name: tier for tier in plan.tiers}
    reasons = _reasons(by_name, split.chain)
    if given is None:
        weights = positive_sum([by_name[name].weight for name in split.tiers])
    else:
        own = dict(zip(split.chain, given.weights, strict=True))
        weights = positive_sum([own[name] for name in split.tiers])
        if given.is_shed:
            reasons = dict.fromkeys(reasons, SHED)
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
