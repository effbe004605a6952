"""CDS: a cluster per tier, and a chain per tier that may be given requests.

Nothing here follows the weights: any change of a cluster makes Envoy forget its ejections and build
new connection pools. Each function authors one shape with typed messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from xds_server.core.model import Affinity, Model, RequestClass, Telemetry, Tier
from xds_server.core.policy import FailurePolicy, HealthPolicy, RewritePolicy
from xds_server.resources import affinity, health, orca
from xds_server.resources.bodies.rewrite import any_is_rewritten, instruction
from xds_server.resources.capability import Capability
from xds_server.resources.headers import chain_filters, metadata, tier_metadata
from xds_server.resources.limits.entrances import entrance, gate_name, is_gated
from xds_server.resources.names import METADATA, chain_name, cluster_name, static_listener_name
from xds_server.resources.proto import Cluster, duration, pack, serialize, to_upb, typed
from xds_server.resources.routing.request_classes import all_repeats
from xds_server.resources.routing.routes import walk_from
from xds_server.resources.snapshot import Resource

BUFFER_LIMIT_BYTES = 8 * 1024 * 1024
"""Envoy's default of 1 MiB answers 413 to long prompts and images."""
CONNECT_TIMEOUT_S = 1.0
KEEP_ALIVE_S = 4.0
"""Idle connections are closed before the engine does so, after 5 s in uvicorn (vLLM, SGLang) and
cpp-httplib (llama.cpp): a request sent into a connection that is just closing looks like a failure."""
INTERNAL_S = 1.0
"""How long a proxy's connection to an internal listener of its own takes new requests. Each connection keeps the
listener that it was opened with: without an end, a changed answer, time or limit would come into force minutes later."""
INITIAL_FETCH_TIMEOUT_S = 5.0
"""How long a cluster may wait for its endpoints before it goes live without (Envoy's default: 15)."""
UNBOUNDED = 1_000_000
"""Circuit breakers stay out of the way: an overflow is a 503 that no retry and no chain catches."""
EJECTION_S = 5.0
"""First ejection; it grows by as much each time, if it comes back before `EJECTION_INTERVAL_S` has passed."""
EJECTION_MAX_S = 60.0
EJECTION_INTERVAL_S = 5.0
"""How often ejected endpoints are looked at for their return, and how soon a returned one is forgiven an ejection.
Longer than the header timeout of 3 s: else a hung engine is always forgiven before it times out again, and takes
3 of every 8 s of requests for good; this way 0.15 of the first 100 s, and less with every return (measured)."""
RETRY_CONCURRENCY = 1000
"""Concurrent retries that a chain may always have, see `_chain_breakers`."""

_CHAIN_TYPES = {
    Capability.COMPOSITE: "envoy.clusters.composite",
    Capability.AGGREGATE: "envoy.clusters.aggregate",
}


def ads() -> Any:
    """Return the typed source "over the one aggregated stream"."""
    return typed.core.ConfigSource(
        ads=typed.core.AggregatedConfigSource(),
        resource_api_version=typed.core.ApiVersion.V3,
        initial_fetch_timeout=duration(INITIAL_FETCH_TIMEOUT_S),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTraits:
    """What of a tier and of the policy shapes its cluster, besides names."""

    failures: FailurePolicy
    health: HealthPolicy
    health_path: str | None = None
    affinity: Affinity | None = None
    leads: bool = False
    """It is the first tier and has no gate: strict routes (`no_fallback`) name its cluster without a chain ..."""
    rewrites: bool = False
    """... and with bodies rewritten for it."""
    concurrency: int | None = None
    queue: int | None = None
    """As in its limit; what does not fit is a 503 that its gate hands on to the chain."""

    @classmethod
    def of(
        cls, model: Model, tier: Tier, *, failures: FailurePolicy, health: HealthPolicy
    ) -> TierTraits:
        """Collect the traits of a tier."""
        leads = tier is model.tiers[0] and not is_gated(tier)
        return cls(
            failures=failures,
            health=health,
            health_path=tier.health_path if health.active else None,
            affinity=tier.affinity,
            leads=leads,
            rewrites=leads and any_is_rewritten(model, [tier]),
            concurrency=tier.limit.concurrency,
            queue=tier.limit.queue,
        )


def cluster_resources(
    models: Sequence[Model],
    failures: FailurePolicy,
    capability: Capability,
    *,
    health: HealthPolicy,
    rewriting: RewritePolicy,
    classes: Sequence[RequestClass] = (),
) -> Iterator[Resource]:
    """Yield every model's clusters, gates and chains, in chain order."""
    for model in models:
        names = [entrance(model, tier) for tier in model.tiers]
        for index, (name, tier) in enumerate(zip(names, model.tiers, strict=True)):
            if not tier.is_static:
                traits = TierTraits.of(model, tier, failures=failures, health=health)
                own = cluster_name(model.name, tier.name)
                cluster = Cluster.FromString(_tier_shape(traits, capability))
                if tier.telemetry is Telemetry.ORCA and capability is not Capability.GRPC:
                    orca.collect(cluster)
                yield _named(cluster, own)
                if is_gated(tier) and capability is not Capability.GRPC:
                    yield _gate(model, tier, instruction(model, tier, rewriting))
                if capability is not Capability.GRPC:
                    rewrites = any_is_rewritten(model, model.tiers[index:])
                    chain = Cluster.FromString(_chain_shape(index, capability, rewrites=rewrites))
                    if orca.is_wanted(model):
                        orca.collect(chain)
                    walk = walk_from(index, len(names))
                    for repeats in (0, *all_repeats(classes, walk=walk, capability=capability)):
                        _set_members(chain, [name] * repeats + names[index:], capability)
                        yield _named(chain, chain_name(model.name, tier.name, repeats))
            elif capability is not Capability.GRPC:
                static = Cluster.FromString(_static_shape(index, is_final(tier)))
                static.load_assignment.cluster_name = name
                endpoint = static.load_assignment.endpoints[0].lb_endpoints[0]
                address = endpoint.endpoint.address.envoy_internal_address
                address.server_listener_name = static_listener_name(model.name)
                fields = endpoint.metadata.filter_metadata[METADATA].fields
                fields["model"].string_value = tier.serves or tier.name
                yield _named(static, name)


def _gate(model: Model, tier: Tier, told: str) -> Resource:
    """Return the cluster that leads to a tier's gate, and speaks for the tier's endpoints in the chain."""
    index, name = model.tiers.index(tier), gate_name(model, tier)
    facts = tier_metadata(index=index, model=tier.serves, rewrite=told)
    filters = chain_filters(index, rewrites=any_is_rewritten(model, [tier]))
    cluster = author_internal_cluster(name, listener=name, facts=facts, http_filters=filters)
    return Resource.of(name, serialize(to_upb(Cluster, cluster)))


def _named(cluster: Cluster, name: str) -> Resource:
    cluster.name = name
    return Resource.of(name, serialize(cluster))


def _set_members(chain: Cluster, names: Sequence[str], capability: Capability) -> None:
    chain.cluster_type.typed_config.value = bytes(chain_config(names, capability))


# Shapes are authored once per process; a cluster is a shape with its names set.


@lru_cache(maxsize=64)
def _tier_shape(traits: TierTraits, capability: Capability) -> bytes:
    return bytes(author_tier_cluster("", traits=traits, capability=capability))


@lru_cache(maxsize=16)
def _chain_shape(start: int, capability: Capability, *, rewrites: bool) -> bytes:
    chain = author_chain("", start=start, members=(), capability=capability, rewrites=rewrites)
    return bytes(chain)


@lru_cache(maxsize=16)
def _static_shape(index: int, final: bool) -> bytes:
    return bytes(author_static_cluster("", index=index, listener="", served="", final=final))


def is_final(tier: Tier) -> bool:
    """Whether a static answer has a status that would be retried: its operator wants it shown."""
    status = tier.answer.status if tier.answer else 200
    return status >= 500 or status == 429


def author_tier_cluster(name: str, *, traits: TierTraits, capability: Capability) -> Any:
    """Author the cluster of a tier with engines; endpoints come by EDS under the same name."""
    c, failures = typed.cluster, traits.failures
    cluster = c.Cluster(
        name=name,
        type=c.ClusterDiscoveryType.EDS,
        eds_cluster_config=c.ClusterEdsClusterConfig(eds_config=ads()),
        connect_timeout=duration(CONNECT_TIMEOUT_S),
        lb_policy=c.ClusterLbPolicy.ROUND_ROBIN,  # the only policy that keeps the weights' ratio
    )
    if capability is Capability.GRPC:
        return cluster
    cluster.per_connection_buffer_limit_bytes = BUFFER_LIMIT_BYTES
    cluster.circuit_breakers = _breakers(traits.concurrency, traits.queue)
    cluster.typed_extension_protocol_options = _http_options(
        idle_s=KEEP_ALIVE_S,
        http_filters=chain_filters(0, rewrites=traits.rewrites) if traits.leads else [],
        outlier_detection=_failures(),
    )
    cluster.common_lb_config = c.ClusterCommonLbConfig(
        # With panic, a fully ejected tier would be given requests instead of the next one.
        healthy_panic_threshold=typed.type.Percent(value=0),
        # Older Envoys hold weight changes back for up to a second otherwise.
        update_merge_window=duration(0),
    )
    cluster.outlier_detection = c.OutlierDetection(
        consecutive_5xx=failures.consecutive,
        interval=duration(EJECTION_INTERVAL_S),
        base_ejection_time=duration(EJECTION_S),
        max_ejection_time=duration(EJECTION_MAX_S),
        max_ejection_percent=100,  # default 10: tiers of less than 10 endpoints never eject
        # Statistics over a tier would eject for being slower than others, which weights handle.
        enforcing_success_rate=0,
        # A hung engine answers health checks and accepts connections: neither may count as success.
        split_external_local_origin_errors=False,
        successful_active_health_check_uneject_host=False,
    )
    affinity.set_policy(cluster, traits.affinity)
    health.set_checks(cluster, traits.health, traits.health_path)
    return cluster


def author_static_cluster(name: str, *, index: int, listener: str, served: str, final: bool) -> Any:
    """Author the cluster whose one endpoint is the internal listener with the static answer."""
    facts = tier_metadata(index=index, model=served, final=final)
    filters = chain_filters(index)
    return author_internal_cluster(name, listener=listener, facts=facts, http_filters=filters)


def author_internal_cluster(
    name: str, *, listener: str, facts: dict[str, str], http_filters: Sequence[Any]
) -> Any:
    """Author a cluster whose one endpoint is an internal listener, with the metadata `facts`.

    Its filters run where a route names it; in a chain the chain's run instead.
    """
    c, e = typed.cluster, typed.endpoint
    address = typed.core.Address(
        envoy_internal_address=typed.core.EnvoyInternalAddress(server_listener_name=listener)
    )
    endpoint = e.LbEndpoint(endpoint=e.Endpoint(address=address), metadata=metadata(facts))
    return c.Cluster(
        name=name,
        type=c.ClusterDiscoveryType.STATIC,
        connect_timeout=duration(CONNECT_TIMEOUT_S),
        per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES,
        circuit_breakers=_breakers(),
        load_assignment=e.ClusterLoadAssignment(
            cluster_name=name, endpoints=[e.LocalityLbEndpoints(lb_endpoints=[endpoint])]
        ),
        typed_extension_protocol_options=_http_options(
            longest_s=INTERNAL_S, http_filters=http_filters
        ),
    )


def author_chain(
    name: str,
    *,
    start: int,
    members: Sequence[str],
    capability: Capability,
    rewrites: bool = False,
) -> Any:
    """Author the chain that begins at tier `start`: attempt n goes to the n-th member that can serve."""
    c = typed.cluster
    return c.Cluster(
        name=name,
        connect_timeout=duration(CONNECT_TIMEOUT_S),
        lb_policy=c.ClusterLbPolicy.CLUSTER_PROVIDED,
        circuit_breakers=_chain_breakers(),
        cluster_type=c.ClusterCustomClusterType(
            name=_CHAIN_TYPES[capability], typed_config=pack(chain_config(members, capability))
        ),
        typed_extension_protocol_options=_http_options(
            http_filters=chain_filters(start, rewrites=rewrites), outlier_detection=_failures()
        ),
    )


def _failures() -> Any:
    """Author what an engine's answer has to be to count towards its ejection: a 5xx, but no 503.

    Engines say 503 when their queue is full (vLLM, SGLang): back-pressure, and ejecting them would make
    the others' queues longer. Time-outs, resets and refused connections count as ever. Envoy asks the cluster that
    the route names: the chain, or the tier's own where a strict route or a gate leads there.
    """
    r, o = typed.matcher_config, typed.http_options

    def status(value: Any) -> Any:
        header = typed.route.HeaderMatcher(name=":status", string_match=value)
        headers = r.HttpHeadersMatch(headers=[header])
        return r.MatchPredicate(http_response_headers_match=headers)

    text = typed.matcher.StringMatcher
    rules = [status(text(prefix="5")), r.MatchPredicate(not_match=status(text(exact="503")))]
    failed = r.MatchPredicate(and_match=r.MatchPredicateMatchSet(rules=rules))
    return o.HttpProtocolOptionsOutlierDetection(error_matcher=failed)


def _http_options(
    *,
    idle_s: float | None = None,
    longest_s: float | None = None,
    http_filters: Sequence[Any] = (),
    outlier_detection: Any = None,
) -> Any:
    o = typed.http_options
    options = o.HttpProtocolOptions(
        explicit_http_config=o.HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=typed.core.Http1ProtocolOptions()
        ),
        http_filters=list(http_filters),
        outlier_detection=outlier_detection,
    )
    if idle_s is not None or longest_s is not None:
        options.common_http_protocol_options = typed.core.HttpProtocolOptions(
            idle_timeout=None if idle_s is None else duration(idle_s),
            max_connection_duration=None if longest_s is None else duration(longest_s),
        )
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(options)}


def chain_config(members: Sequence[str], capability: Capability) -> Any:
    """Author the list of a chain's members."""
    if capability is Capability.AGGREGATE:
        return typed.aggregate.ClusterConfig(clusters=list(members))
    entry = typed.composite.ClusterConfigClusterEntry
    return typed.composite.ClusterConfig(clusters=[entry(name=each) for each in members])


def _breakers(concurrency: int | None = None, queue: int | None = None) -> Any:
    """Bound the requests in progress, and those that wait for one of these to end.

    Only connections make requests wait: over HTTP/1.1 each carries one request at a time. Without a queue nothing
    may wait, not even for its connection to be made, so there requests are counted instead. With one, who waits for a
    connection to be made counts as waiting too: a shorter queue than `concurrency` would turn a burst away from a tier
    that has room (of 60 requests at once, 8 of 20 got in where 2 could wait).
    """
    thresholds = typed.cluster.CircuitBreakersThresholds(
        max_connections=UNBOUNDED, max_pending_requests=UNBOUNDED, max_requests=UNBOUNDED
    )
    if concurrency is not None and queue:
        thresholds.max_connections = concurrency
        thresholds.max_pending_requests = max(concurrency, queue)
    elif concurrency is not None:
        thresholds.max_requests = concurrency
    return typed.cluster.CircuitBreakers(thresholds=[thresholds])


def _chain_breakers() -> Any:
    """Bound how many of a chain's requests are retried at once.

    A chain repeats a member only for a class that asks for it, so a retry is another tier's first attempt and
    amplifies nothing; the budget only has to keep a storm finite. Envoy counts requests at the member and
    retries at the chain.
    """
    budget = typed.cluster.CircuitBreakersThresholdsRetryBudget(
        budget_percent=typed.type.Percent(value=100), min_retry_concurrency=RETRY_CONCURRENCY
    )
    thresholds = typed.cluster.CircuitBreakersThresholds(
        max_connections=UNBOUNDED,
        max_pending_requests=UNBOUNDED,
        max_requests=UNBOUNDED,
        retry_budget=budget,
    )
    return typed.cluster.CircuitBreakers(thresholds=[thresholds])
