"""RDS: per model a route whose weights split requests between the chains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from xds_server.core.model import (
    Affinity,
    Model,
    ModelName,
    RequestClass,
    StaticAnswer,
    Telemetry,
    Tier,
    TierName,
)
from xds_server.core.plan import TIER_WEIGHT_TOTAL
from xds_server.core.policy import FailurePolicy
from xds_server.resources import affinity, headers, orca
from xds_server.resources.bodies.request_facts import Fact, fact_is
from xds_server.resources.capability import Capability
from xds_server.resources.limits.entrances import entrance
from xds_server.resources.names import chain_name, cluster_name
from xds_server.resources.proto import (
    Route,
    duration,
    pack,
    typed,
)
from xds_server.resources.routing import model_routing, request_classes
from xds_server.resources.routing.no_fallback import strict

RETRIES_MAX = 2
"""And at most one less than the chain has members: one more attempt would find none, and the 503 of that hides
the real error."""
HOST_TRIES = 5
"""How often Envoy looks for an endpoint that a request has not tried: 99 of 100 find one of two."""
BACK_OFF_S = 0.010
BACK_OFF_MAX_S = 0.100
"""Full jitter between zero and this: the next attempt goes to other machines, so it need not wait long."""


def members(model: Model, capability: Capability) -> tuple[Tier, ...]:
    """Return the tiers that a route of this kind of proxy can choose from."""
    if capability is Capability.GRPC:  # cannot reach the internal listener
        return tuple(tier for tier in model.tiers if not tier.is_static)
    return model.tiers


def member_name(
    model: Model, tier: Tier, capability: Capability, request_class: RequestClass | None = None
) -> str:
    """Name the cluster that stands for a tier in the route: its chain, where it has one."""
    if tier.is_static or capability is Capability.GRPC:
        return cluster_name(model.name, tier.name)
    walk = walk_from(model.tiers.index(tier), len(model.tiers))
    repeats = request_classes.repeats(request_class, walk=walk, capability=capability)
    return chain_name(model.name, tier.name, repeats)


def walk_from(start: int, tiers: int) -> int:
    """Return how many retries lead down a chain of so many tiers that starts at this one."""
    return min(RETRIES_MAX, tiers - 1 - start)


def author_routes(
    model: Model, *, failures: FailurePolicy, capability: Capability, repeats: int = 0
) -> list[Any]:
    """Author a model's routes with all weight on its first tier.

    There is one, or two that only differ in their times: for requests that stream, and for the rest.

    Args:
        model: Whose routes they are.
        failures: The times.
        capability: Of the proxies.
        repeats: Attempts on the same tier before the next one is tried, besides the first.
    """
    if capability is Capability.GRPC:
        return [_author_route(model, capability)]
    attempts = walk_from(0, len(model.tiers)) + 1 + repeats
    patience = _Patience(
        headers_s=failures.header_timeout_s,
        silence_s=failures.token_stall_s,
        attempts=attempts,
        repeats=repeats,
    )
    first = _author_route(model, capability, failures, patience)
    if failures.answer_timeout_s is None:
        return [first]
    first.match.dynamic_metadata = [fact_is(Fact.STREAM, True)]
    patience = replace(patience, headers_s=failures.answer_timeout_s, silence_s=None)
    return [first, _author_route(model, capability, failures, patience)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patience:
    """How long one kind of request may take to answer."""

    headers_s: float
    """Per attempt; 0 = for ever."""
    silence_s: float | None
    """Inside a stream; 0 = for ever, None = does not apply: there is one answer, all at once."""
    attempts: int
    repeats: int
    """Of the attempts, those on a tier that was tried already."""

    def idle_s(self) -> float:
        """Return how long the whole request may be silent; 0 = for ever.

        `per_try_idle_timeout` alone would not do: once the header time-out has passed, which Envoy ignores
        inside a running stream, its timer is gone too (seen on 1.40). The whole request's idle time-out
        stays; it may not end what the attempts are still busy with.
        """
        if self.silence_s == 0 or self.headers_s == 0:
            return 0.0
        return max(self.silence_s or 0.0, self.attempts * (self.headers_s + BACK_OFF_MAX_S))


def _author_route(
    model: Model,
    capability: Capability,
    failures: FailurePolicy | None = None,
    patience: _Patience | None = None,
) -> Any:
    r = typed.route
    split = [
        r.WeightedClusterClusterWeight(
            name=member_name(model, tier, capability),
            weight=0 if index else TIER_WEIGHT_TOTAL,
            response_headers_to_add=[headers.add(headers.DEGRADE_REASON, "", keep=True)]
            if index and patience
            else [],
        )
        for index, tier in enumerate(members(model, capability))
    ]
    action = r.RouteAction(weighted_clusters=r.WeightedCluster(clusters=split))
    route = r.Route(name=model.name, match=r.RouteMatch(prefix=model.prefix), route=action)
    if failures is None or patience is None:
        return route
    action.timeout = duration(0)  # the default of 15 s cuts streams
    action.idle_timeout = duration(patience.idle_s())
    action.retry_policy = _retry_policy(patience, capability)
    route.response_headers_to_add = [headers.attempts()]
    if failures.static_on_5xx:
        route.response_headers_to_add.append(
            headers.add(headers.MODEL_ROUTE, headers.literal(model.name))
        )
    route.response_headers_to_remove = [headers.RATE_LIMITED]
    affinity.set_hash_policy(action, affinity.of(model))
    if orca.is_wanted(model):
        orca.set_headers(route)
    return route


def model_routes(
    model: Model,
    failures: FailurePolicy,
    capability: Capability,
    request_class: RequestClass | None = None,
) -> list[Route]:
    """Return the routes of `author_routes`, for one class of requests: shapes with this model's names set."""
    statics = tuple(tier.is_static for tier in model.tiers)
    session, reports = affinity.of(model), orca.is_wanted(model)
    shapes = _route_shapes(
        statics,
        request_classes.patience(failures, request_class),
        capability,
        session=session,
        reports=reports,
        repeats=request_classes.repeats(
            request_class, walk=walk_from(0, len(statics)), capability=capability
        ),
    )
    routes = [Route.FromString(shape) for shape in shapes]
    for route in routes:
        route.name = model.name
        route.match.prefix = model.prefix
        clusters = route.route.weighted_clusters.clusters
        for cluster, tier in zip(clusters, members(model, capability), strict=True):
            cluster.name = member_name(model, tier, capability, request_class)
        for header in route.response_headers_to_add:
            if header.header.key == headers.MODEL_ROUTE:
                header.header.value = headers.literal(model.name)
        if capability is not Capability.GRPC:
            model_routing.adopt(route, model)
        if request_class is not None:
            request_classes.adopt(route, model, request_class)
    if capability is Capability.GRPC or model.tiers[0].is_static:
        return routes
    first = entrance(model, model.tiers[0])
    return [each for route in routes for each in (strict(route, first), route)]


@lru_cache(maxsize=64)
def _route_shapes(
    statics: tuple[bool, ...],
    failures: FailurePolicy,
    capability: Capability,
    *,
    session: Affinity | None = None,
    reports: bool = False,
    repeats: int = 0,
) -> tuple[bytes, ...]:
    tiers = tuple(
        Tier(
            name=TierName(""),
            serves="",
            answer=StaticAnswer() if is_static else None,
            affinity=session,
            telemetry=Telemetry.ORCA if reports else Telemetry.AGENTS,
        )
        for is_static in statics
    )
    anyone = Model(name=ModelName(""), tiers=tiers)
    authored = author_routes(anyone, failures=failures, capability=capability, repeats=repeats)
    return tuple(bytes(each) for each in authored)


def _retry_policy(patience: _Patience, capability: Capability) -> Any:
    r = typed.route
    policy = r.RetryPolicy(
        retry_on="5xx,reset,connect-failure,retriable-status-codes",
        retriable_status_codes=[429],
        num_retries=patience.attempts - 1,
        per_try_timeout=duration(patience.headers_s),
        retry_back_off=r.RetryPolicyRetryBackOff(
            base_interval=duration(BACK_OFF_S), max_interval=duration(BACK_OFF_MAX_S)
        ),
    )
    if patience.repeats:
        previous = typed.previous_hosts.PreviousHostsPredicate()
        policy.retry_host_predicate = [
            r.RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts", typed_config=pack(previous)
            )
        ]
        policy.host_selection_retry_max_attempts = HOST_TRIES
    if patience.silence_s is not None:
        policy.per_try_idle_timeout = duration(patience.silence_s)
    if capability is Capability.AGGREGATE:
        # It chooses by health alone, so a retry would meet the same tier.
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
        tuple(domains): model_routing.in_order(sharing[key]) for key, domains in grouped.items()
    }
