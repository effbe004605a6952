"""More of what Envoy does not do as one would think: what refers to what, times, health checks, its own connections."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tests.fakes.plans import a_model, a_plan, a_topology
from tests.resources.test_gotchas import (
    chains,
    clusters,
    members,
    routes,
    snapshot,
    tiers,
    topology,
    with_every_envoy,
)
from xds_server.core.limits import Limit, Tenants
from xds_server.core.model import ClassName, RequestClass
from xds_server.core.policy import FailurePolicy, HealthPolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import parse, parse_any

EDGES = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
BODY = 8 << 20


def listeners(capability):
    found = snapshot(capability).of_type(served.LISTENER).resources
    return {name: parse(served.LISTENER, each.body) for name, each in found.items()}


def manager_of(listener):
    return parse_any(listener.filter_chains[0].filters[0].typed_config)


def assignments(capability):
    found = snapshot(capability).of_type(served.ENDPOINT).resources
    return {name: parse(served.ENDPOINT, each.body) for name, each in found.items()}


def internal(capability):
    """The clusters whose endpoint is a listener of the proxy's own, and its name."""
    return {
        name: each.load_assignment.endpoints[0]
        .lb_endpoints[0]
        .endpoint.address.envoy_internal_address.server_listener_name
        for name, each in clusters(capability).items()
        if each.load_assignment
    }


def options_of(cluster):
    return parse_any(cluster.typed_extension_protocol_options[EDGES])


def is_strict(route):
    return not route.route.weighted_clusters


# 1. Weighted clusters


@with_every_envoy
def test_what_a_route_or_a_chain_names_is_there(capability):
    """An unknown cluster is a 503, and a chain passes over an unknown member without a word."""
    known = clusters(capability).keys()
    for route in routes(capability):
        split = route.route.weighted_clusters
        named = [each.name for each in split.clusters] if split else [route.route.cluster]
        assert set(named) <= known, route.name
    for name, chain in chains(capability).items():
        assert set(members(chain)) <= known, name
    assert set(internal(capability).values()) <= listeners(capability).keys()
    assert assignments(capability).keys() == tiers(capability).keys()


@with_every_envoy
def test_a_tier_that_gets_nothing_stays_in_its_place_with_a_weight_of_0(capability):
    everything = replace(topology(), models=topology().models[:1])
    builder = SnapshotBuilder(everything, Policy(), capability)
    for split in ([1000, 0, 0], [0, 0, 0], [2**40, 2**40, 2**40]):
        (resource,) = (
            builder.build(a_plan(everything, split)).of_type(served.ROUTE).resources.values()
        )
        (host,) = parse(served.ROUTE, resource.body).virtual_hosts
        for route in host.routes:
            if route.route is None or is_strict(route):
                continue
            weights = [each.weight for each in route.route.weighted_clusters.clusters]
            assert len(weights) == 3
            assert None not in weights, "unset is refused, and the whole table with it"
            assert 0 < sum(weights) < 2**32


@with_every_envoy
def test_nothing_is_configured_per_route_where_it_would_only_hold_for_the_first_pick(capability):
    """And a limiter there would refill its bucket with every push of weights."""
    for route in routes(capability):
        assert not route.typed_per_filter_config
        for each in route.route.weighted_clusters.clusters if not is_strict(route) else ():
            assert not each.typed_per_filter_config


# 2. The static answer


@with_every_envoy
def test_connections_to_the_proxys_own_listeners_end_soon(capability):
    """Each keeps the listener that it was opened with, in Envoy for ten minutes after that was changed."""
    assert len(internal(capability)) > 4
    for name in internal(capability):
        common = options_of(clusters(capability)[name]).common_http_protocol_options
        assert 0 < common.max_connection_duration.total_seconds() <= 2, name


@with_every_envoy
def test_the_proxys_own_listeners_take_bodies_as_long_as_engines_do(capability):
    for name, listener in listeners(capability).items():
        assert listener.per_connection_buffer_limit_bytes >= BODY, name
        for each in manager_of(listener).http_filters:
            if each.name == "envoy.filters.http.buffer":
                assert parse_any(each.typed_config).max_request_bytes >= BODY, name
    for name in internal(capability):
        assert clusters(capability)[name].per_connection_buffer_limit_bytes >= BODY, name


@with_every_envoy
def test_what_the_last_net_needs_to_know_of_an_answer_is_noted_behind_it(capability):
    """Answers pass the filters in the opposite order."""
    names = [each.name for each in manager_of(listeners(capability)["llm"]).http_filters]
    net = names.index("envoy.filters.http.custom_response")
    assert names[net + 1] == "envoy.filters.http.header_to_metadata"
    assert names[-1] == "envoy.filters.http.router"


# 3. Fail-over


@with_every_envoy
def test_whatever_an_engine_does_before_its_first_byte_is_retried(capability):
    for route in routes(capability):
        policy = route.route.retry_policy
        assert {"5xx", "reset", "connect-failure"} <= set(policy.retry_on.split(","))
        if not is_strict(route):
            assert "retriable-status-codes" in policy.retry_on
            assert policy.retriable_status_codes == [429]


@with_every_envoy
def test_every_attempt_has_a_time_and_the_whole_request_has_room_for_all_of_them(capability):
    """The stream's idle time-out before the headers counts for no outlier detection, so it may not come first."""
    for route in routes(capability):
        policy = route.route.retry_policy
        attempt = policy.per_try_timeout.total_seconds()
        assert attempt > 0
        attempts = 1 + policy.num_retries
        assert route.route.idle_timeout.total_seconds() >= attempts * attempt, route.name
        streams = any(
            each.path[0].key == "stream" and each.value.bool_match
            for each in route.match.dynamic_metadata
        )
        assert (policy.per_try_idle_timeout is not None) is streams


def test_old_envoys_leave_a_tier_that_failed_only_where_they_are_told_to():
    """An aggregate cluster chooses by health alone, so a retry would go to the same tier."""
    for route in routes(Capability.AGGREGATE):
        if is_strict(route):
            continue
        told = route.route.retry_policy.retry_priority
        assert told.name == "envoy.retry_priorities.previous_priorities"
        assert parse_any(told.typed_config).update_frequency == 1
    for route in routes(Capability.COMPOSITE):
        assert route.route.retry_policy.retry_priority is None


def test_more_attempts_at_a_tier_go_to_endpoints_that_were_not_asked():
    """Of two endpoints a quarter of the retries would meet the same one again."""
    repeating = [each for each in routes(Capability.COMPOSITE) if each.name.endswith("/rest")]
    for route in repeating:
        if is_strict(route) or "/chain/" in route.route.weighted_clusters.clusters[0].name:
            policy = route.route.retry_policy
            (predicate,) = policy.retry_host_predicate
            assert predicate.name == "envoy.retry_host_predicates.previous_hosts"
            assert policy.host_selection_retry_max_attempts == 5
    assert any(not is_strict(each) for each in repeating)


@with_every_envoy
def test_a_tier_keeps_its_requests_while_one_endpoint_is_well(capability):
    """With Envoy's 140 % it would pass requests on at 71 %, beside what the control plane passes on."""
    for assignment in assignments(capability).values():
        assert assignment.policy.overprovisioning_factor >= 100_000
        assert not assignment.policy.drop_overloads, "a change of it alone is not applied"


# 4. Ejection and health


@with_every_envoy
def test_a_busy_engines_503_ejects_nobody_whoever_the_route_names(capability):
    """Envoy asks the cluster of the route what a failure is: the chain, or the tier's own."""
    asked = {**tiers(capability), **chains(capability)}
    for name, cluster in asked.items():
        matcher = options_of(cluster).outlier_detection.error_matcher
        failed, busy = matcher.and_match.rules
        (five,) = failed.http_response_headers_match.headers
        (full,) = busy.not_match.http_response_headers_match.headers
        assert (five.string_match.prefix, full.string_match.exact) == ("5", "503"), name


@lru_cache(maxsize=1)
def checked():
    everything = a_topology(a_model())
    policy = Policy(health=HealthPolicy(active=True, interval_s=5, timeout_s=2, return_s=60))
    found = SnapshotBuilder(everything, policy, Capability.COMPOSITE).build(a_plan(everything))
    parsed = [
        parse(served.CLUSTER, each.body)
        for each in found.of_type(served.CLUSTER).resources.values()
    ]
    return [each for each in parsed if each.health_checks]


def test_an_idle_tier_is_checked_as_often_as_a_busy_one():
    """By default once a minute, the first check after traffic began included."""
    assert len(checked()) == 2
    for cluster in checked():
        (check,) = cluster.health_checks
        assert check.no_traffic_interval == check.interval
        assert check.no_traffic_healthy_interval == check.interval


def test_one_bad_check_is_a_hiccup_and_no_check_keeps_a_connection():
    for cluster in checked():
        (check,) = cluster.health_checks
        (every,) = check.http_health_check.retriable_statuses
        assert (every.start, every.end) == (100, 600), "other statuses would count at once"
        assert check.unhealthy_threshold > 1
        assert check.reuse_connection is False
        assert cluster.ignore_health_on_host_removal
        assert cluster.outlier_detection.successful_active_health_check_uneject_host is False


def test_an_endpoint_that_returns_by_its_check_starts_above_nothing():
    """With 0 % it would get nothing even after its window."""
    for cluster in checked():
        slow = cluster.round_robin_lb_config.slow_start_config
        assert slow.min_weight_percent.value >= 10


@with_every_envoy
def test_endpoints_that_may_take_nothing_stay_listed_and_weights_are_above_0(capability):
    everything = topology()
    names = [instance.id for _, _, instance in everything.instances()]
    plan = a_plan(everything, weights=dict.fromkeys(names, 0))
    found = SnapshotBuilder(everything, Policy(), capability).build(plan)
    for each in found.of_type(served.ENDPOINT).resources.values():
        assignment = parse(served.ENDPOINT, each.body)
        assert len(assignment.endpoints) == 1
        assert assignment.endpoints[0].load_balancing_weight, "or gRPC sends nothing there"
        for endpoint in assignment.endpoints[0].lb_endpoints:
            assert endpoint.load_balancing_weight >= 1, "0 refuses every other cluster's too"


# 5. Admission


def test_limiters_stand_behind_what_they_count_and_hold_more_than_envoys_20_tenants():
    """Before it they would admit everything, and the 21st tenant would have no limit."""
    full = Limit(requests_per_second=10.0, tokens_per_second=1000.0)
    everything = replace(
        a_topology(replace(a_model(), limit=full)),
        tenants=Tenants(header="authorization", hashed=True, others=full),
        classes=(RequestClass(name=ClassName("rest")),),
    )
    found = SnapshotBuilder(everything, Policy(failures=FailurePolicy()), Capability.COMPOSITE)
    resources = found.build(a_plan(everything))
    listener = resources.of_type(served.LISTENER).resources["llm"].body
    names = [each.name for each in manager_of(parse(served.LISTENER, listener)).http_filters]
    assert names[:5] == [
        "envoy.filters.http.lua",
        "envoy.filters.http.lua",
        "limits/tenants",
        "limits/models",
        "envoy.filters.http.custom_response",
    ]
    for each in resources.of_type(served.EXTENSION_CONFIG).resources.values():
        config = parse_any(parse(served.EXTENSION_CONFIG, each.body).typed_config)
        assert config.max_dynamic_descriptors >= 10_000
        assert config.always_consume_default_token_bucket is False
        assert b"\x98\x01\x01" in each.body, "enable_retry_after_header"


# 9. Proxies without a control plane


@with_every_envoy
def test_nothing_waits_for_ever_or_for_envoys_15_s_to_be_fetched(capability):
    sources = [each.eds_cluster_config.eds_config for each in tiers(capability).values()]
    for listener in listeners(capability).values():
        manager = manager_of(listener)
        if manager.rds:
            sources.append(manager.rds.config_source)
        sources += [
            each.config_discovery.config_source
            for each in manager.http_filters
            if each.config_discovery
        ]
    assert len(sources) > 8
    for source in sources:
        assert 0 < source.initial_fetch_timeout.total_seconds() <= 5
