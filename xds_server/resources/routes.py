"""RDS: one route table; per model a route whose weights split requests between the chains.

The table is authored once and patched in place: a plan only changes the numbers and the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from xds_server.core.model import Model, ModelName, StaticAnswer, Tier, TierName
from xds_server.core.plan import TIER_WEIGHT_TOTAL, ModelPlan
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.capability import Capability
from xds_server.resources.names import ROUTE_CONFIG_NAME, chain_name, cluster_name
from xds_server.resources.proto import (
    UINT32_MAX,
    Route,
    RouteConfiguration,
    WeightedCluster,
    duration,
    pack,
    serialize,
    to_upb,
    typed,
)
from xds_server.resources.snapshot import Resource

RETRIES_MAX = 2
"""And at most one less than the chain has members: one more attempt would find none, and the 503 of that hides
the real error."""
BACK_OFF_S = 0.010
BACK_OFF_MAX_S = 0.100
"""Full jitter between zero and this: the next attempt goes to other machines, so it need not wait long."""


def members(model: Model, capability: Capability) -> tuple[Tier, ...]:
    """Return the tiers that a route of this kind of proxy can choose from."""
    if capability is Capability.GRPC:  # cannot reach the internal listener
        return tuple(tier for tier in model.tiers if not tier.is_static)
    return model.tiers


def member_name(model: Model, tier: Tier, capability: Capability) -> str:
    """Name the cluster that stands for a tier in the route: its chain, where it has one."""
    has_chain = not tier.is_static and capability is not Capability.GRPC
    return (chain_name if has_chain else cluster_name)(model.name, tier.name)


def author_route(model: Model, *, failures: FailurePolicy, capability: Capability) -> Any:
    """Author a model's route with all weight on its first tier."""
    r = typed.route
    weight = r.WeightedClusterClusterWeight
    split = [
        weight(
            name=member_name(model, tier, capability),
            weight=0 if index else TIER_WEIGHT_TOTAL,
            response_headers_to_add=[headers.add(headers.DEGRADE_REASON, "", keep=True)]
            if index and capability is not Capability.GRPC
            else [],
        )
        for index, tier in enumerate(members(model, capability))
    ]
    action = r.RouteAction(weighted_clusters=r.WeightedCluster(clusters=split))
    route = r.Route(name=model.name, match=r.RouteMatch(prefix=model.prefix), route=action)
    if capability is Capability.GRPC:
        return route
    action.timeout = duration(0)  # the default of 15 s cuts streams
    retries = min(RETRIES_MAX, len(model.tiers) - 1)
    action.idle_timeout = duration(_idle_s(failures, attempts=retries + 1))
    action.retry_policy = _retry_policy(retries, failures, capability)
    if failures.static_on_5xx:
        route.response_headers_to_add = [
            headers.add(headers.MODEL_ROUTE, headers.literal(model.name))
        ]
    route.response_headers_to_remove = [headers.OVERLOADED]
    return route


def _route(model: Model, failures: FailurePolicy, capability: Capability) -> Route:
    """Return the route of `author_route`: a shape with this model's names set."""
    statics = tuple(tier.is_static for tier in model.tiers)
    route = Route.FromString(_route_shape(statics, failures, capability))
    route.name = model.name
    route.match.prefix = model.prefix
    clusters = route.route.weighted_clusters.clusters
    for cluster, tier in zip(clusters, members(model, capability), strict=True):
        cluster.name = member_name(model, tier, capability)
    for header in route.response_headers_to_add:
        header.header.value = headers.literal(model.name)
    return route


@lru_cache(maxsize=16)
def _route_shape(
    statics: tuple[bool, ...], failures: FailurePolicy, capability: Capability
) -> bytes:
    tiers = tuple(
        Tier(name=TierName(""), serves="", answer=StaticAnswer() if is_static else None)
        for is_static in statics
    )
    anyone = Model(name=ModelName(""), tiers=tiers)
    return bytes(author_route(anyone, failures=failures, capability=capability))


def _idle_s(failures: FailurePolicy, *, attempts: int) -> float:
    """Return how long a stream may be silent; 0 = for ever.

    `per_try_idle_timeout` alone would not do: once the header time-out has passed, which Envoy ignores
    inside a running stream, its timer is gone too (seen on 1.40). The whole request's idle time-out stays;
    it may not end what the attempts are still busy with.
    """
    if failures.token_stall_s <= 0:
        return 0.0
    return max(failures.token_stall_s, attempts * (failures.header_timeout_s + BACK_OFF_MAX_S))


def _retry_policy(retries: int, failures: FailurePolicy, capability: Capability) -> Any:
    r = typed.route
    policy = r.RetryPolicy(
        retry_on="5xx,reset,connect-failure,retriable-status-codes",
        retriable_status_codes=[429],
        num_retries=retries,
        per_try_timeout=duration(failures.header_timeout_s),
        per_try_idle_timeout=duration(failures.token_stall_s),
        retry_back_off=r.RetryPolicyRetryBackOff(
            base_interval=duration(BACK_OFF_S), max_interval=duration(BACK_OFF_MAX_S)
        ),
    )
    if (
        capability is Capability.AGGREGATE
    ):  # it would choose by health only, so a retry the same tier
        config = typed.previous_priorities.PreviousPrioritiesConfig(update_frequency=1)
        policy.retry_priority = r.RetryPolicyRetryPriority(
            name="envoy.retry_priorities.previous_priorities", typed_config=pack(config)
        )
    return policy


def group_by_domains(models: Iterable[Model]) -> dict[tuple[str, ...], tuple[Model, ...]]:
    """Return virtual hosts as domains -> models, longest prefix first.

    Envoy allows a domain in one virtual host only, so domains that the same models share make one.
    """
    by_domain: dict[str, list[Model]] = {}
    for model in models:
        for domain in model.domains:
            by_domain.setdefault(domain, []).append(model)
    grouped: dict[tuple[ModelName, ...], list[str]] = {}
    sharing: dict[tuple[ModelName, ...], list[Model]] = {}
    for domain, models_here in by_domain.items():
        key = tuple(model.name for model in models_here)
        grouped.setdefault(key, []).append(domain)
        sharing[key] = models_here
    return {
        tuple(domains): tuple(sorted(sharing[key], key=lambda model: -len(model.prefix)))
        for key, domains in grouped.items()
    }


@dataclass(slots=True)
class _Split:
    """The weighted clusters of one model, in every virtual host that it appears in."""

    tiers: tuple[TierName, ...]
    chain: tuple[TierName, ...]
    occurrences: list[Sequence[WeightedCluster.ClusterWeight]]
    numbers: tuple[tuple[int, str], ...] = ()


class RouteTable:
    """The route configuration, patched in place. Not for use by two threads at once."""

    def __init__(
        self, models: Sequence[Model], failures: FailurePolicy, capability: Capability
    ) -> None:
        authored: dict[ModelName, Route] = {}
        self._splits: dict[ModelName, _Split] = {}
        for model in models:
            reachable = members(model, capability)
            if not reachable:
                continue
            authored[model.name] = _route(model, failures, capability)
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
                route = host.routes.add()
                route.CopyFrom(authored[model.name])
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


def _reasons(by_name: Mapping[TierName, Any], chain: Sequence[TierName]) -> dict[TierName, str]:
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
