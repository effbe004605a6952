"""What Envoy does not do as one would think: each rule keeps a trap of 1.40 out of every resource.

The traps were seen on the real one (sections 1 to 4 of the research on Envoy); what can be seen in behavior is
tested in tests/integration, and what a test would need minutes for is held here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import lru_cache

import pytest

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.limits import Limit
from xds_server.core.model import ClassName, RequestClass
from xds_server.core.policy import Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import parse, parse_any, typed

ENVOYS = (Capability.COMPOSITE, Capability.AGGREGATE)
EDGES = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

with_every_envoy = pytest.mark.parametrize("capability", ENVOYS)


def topology():
    """Everything that makes routes and clusters of its own: classes, gates, long and short chains."""
    classes = (
        RequestClass(name=ClassName("core"), header="x-priority", value="high"),
        RequestClass(name=ClassName("rest"), retries=3, header_timeout_s=15.0),
    )
    gated = replace(a_tier("primary", "big", [1, 2]), limit=Limit(concurrency=4, queue=2))
    full = replace(a_tier("fallback", "small", [3]), limit=Limit(concurrency=4))
    long = [a_tier(f"t{index}", f"m{index}", [10 + index], prefix="l") for index in range(5)]
    models = (
        a_model(),
        a_model("gated", tiers=[gated, full, a_static_tier()], prefix="/gated/"),
        a_model("long", tiers=[*long, a_static_tier()], prefix="/long/"),
        a_model("short", tiers=[a_tier("only", "m", [20]), a_static_tier()], prefix="/short/"),
    )
    return replace(a_topology(*models), classes=classes)


@lru_cache(maxsize=2)
def snapshot(capability):
    everything = topology()
    return SnapshotBuilder(everything, Policy(), capability).build(a_plan(everything))


def clusters(capability):
    found = snapshot(capability).of_type(served.CLUSTER).resources
    return {name: parse(served.CLUSTER, each.body) for name, each in found.items()}


def routes(capability):
    (resource,) = snapshot(capability).of_type(served.ROUTE).resources.values()
    table = parse(served.ROUTE, resource.body)
    everyone = [route for host in table.virtual_hosts for route in host.routes]
    return [each for each in everyone if each.route is not None]


def chains(capability):
    found = clusters(capability).items()
    return {name: each for name, each in found if each.cluster_type is not None}


def tiers(capability):
    wanted = typed.cluster.ClusterDiscoveryType.EDS
    return {name: each for name, each in clusters(capability).items() if each.type == wanted}


def members(chain):
    config = parse_any(chain.cluster_type.typed_config)
    return [getattr(each, "name", each) for each in config.clusters]


def upstream_filters(cluster):
    options = parse_any(cluster.typed_extension_protocol_options[EDGES])
    return [each.name for each in options.http_filters]


@with_every_envoy
def test_no_route_cuts_a_stream_by_the_default_of_15_s_or_the_idle_5_min(capability):
    for route in routes(capability):
        assert route.route.timeout.total_seconds() == 0, route.name
        assert route.route.idle_timeout is not None, "or the listener's five minutes hold"


@with_every_envoy
def test_nobody_asks_for_hedging_or_another_cluster_on_retry(capability):
    """Hedging costs up to three GPUs; the other one breaks with weights of 0, and chains do its work."""
    for route in routes(capability):
        assert route.route.hedge_policy is None
        assert not route.route.retry_policy.refresh_cluster_on_retry


@with_every_envoy
def test_no_route_table_is_refused_because_a_cluster_comes_later(capability):
    (resource,) = snapshot(capability).of_type(served.ROUTE).resources.values()
    table = parse(served.ROUTE, resource.body)
    assert not table.validate_clusters
    for route in routes(capability):
        if route.route.weighted_clusters:
            assert not route.route.weighted_clusters.runtime_key_prefix, "both 0: a 404"
            assert not route.route.weighted_clusters.header_name


@with_every_envoy
def test_there_are_at_most_three_retries_and_never_more_than_a_chain_has_members(capability):
    """One attempt more than members is a 503 of Envoy's own that hides the real error."""
    found = chains(capability)
    for route in routes(capability):
        retries = route.route.retry_policy.num_retries
        assert retries <= 3
        if route.route.weighted_clusters:
            first = route.route.weighted_clusters.clusters[0].name
            assert retries <= len(members(found[first])) - 1, (route.name, first)


@with_every_envoy
def test_retries_wait_with_jitter_and_shortly(capability):
    """Envoy's back-off is fully jittered: anything between zero and the interval."""
    for route in routes(capability):
        pause = route.route.retry_policy.retry_back_off
        assert 0 < pause.base_interval.total_seconds() <= 0.025
        assert pause.base_interval <= pause.max_interval
        assert pause.max_interval.total_seconds() <= 0.25


@with_every_envoy
def test_a_429_is_retried_and_no_other_client_error(capability):
    for route in routes(capability):
        policy = route.route.retry_policy
        assert set(policy.retriable_status_codes) <= {429}
        assert "retriable-4xx" not in policy.retry_on
        assert "gateway-error" not in policy.retry_on, "500 would not count"


@with_every_envoy
def test_every_chain_ends_in_the_static_tier_and_walks_in_order(capability):
    for name, chain in chains(capability).items():
        listed = members(chain)
        assert listed[-1].endswith("/static"), name
        assert chain.lb_policy == typed.cluster.ClusterLbPolicy.CLUSTER_PROVIDED


@with_every_envoy
def test_filters_of_the_truth_are_on_the_chain_because_those_of_members_never_run(capability):
    for chain in chains(capability).values():
        names = upstream_filters(chain)
        assert names[0] == "envoy.filters.http.header_mutation"
        assert names[-1] == "envoy.filters.http.upstream_codec"


@with_every_envoy
def test_the_retry_budget_is_the_chains_and_no_count_of_the_last_second(capability):
    """Members have none to give, and `budget_interval` lets attempts triple."""
    for chain in chains(capability).values():
        (thresholds,) = chain.circuit_breakers.thresholds
        budget = thresholds.retry_budget
        assert budget.min_retry_concurrency >= 200
        assert budget.budget_interval is None


@with_every_envoy
def test_a_tier_without_healthy_endpoints_is_left_instead_of_panicking(capability):
    for cluster in tiers(capability).values():
        assert cluster.common_lb_config.healthy_panic_threshold.value == 0


@with_every_envoy
def test_old_envoys_do_not_hold_weights_back_for_a_second(capability):
    for cluster in tiers(capability).values():
        assert cluster.common_lb_config.update_merge_window is not None
        assert cluster.common_lb_config.update_merge_window.total_seconds() == 0


@with_every_envoy
def test_three_failures_eject_even_the_only_endpoint_and_a_health_check_does_not_undo_it(
    capability,
):
    for cluster in tiers(capability).values():
        rule = cluster.outlier_detection
        assert rule.consecutive_5xx == 3
        assert rule.max_ejection_percent == 100, "default 10: fewer than 10 are never ejected"
        assert not rule.split_external_local_origin_errors, "hanging engines would never go"
        assert rule.successful_active_health_check_uneject_host is False
        assert rule.enforcing_success_rate == 0
        assert rule.base_ejection_time <= rule.max_ejection_time
        assert rule.interval > timedelta(seconds=3), "or the ejections of a hung engine never grow"


@with_every_envoy
def test_load_balancing_keeps_the_ratio_of_the_weights(capability):
    """RANDOM ignores weights, LEAST_REQUEST drifts; rings are for affinity, where it is asked for."""
    for cluster in tiers(capability).values():
        assert cluster.lb_policy == typed.cluster.ClusterLbPolicy.ROUND_ROBIN
        assert cluster.common_lb_config.locality_weighted_lb_config is None


@with_every_envoy
def test_no_breaker_refuses_the_first_request(capability):
    """No request may wait = not even for its connection. Only a tier with a limit may overflow."""
    for name, cluster in clusters(capability).items():
        (thresholds,) = cluster.circuit_breakers.thresholds
        assert thresholds.max_pending_requests > 0, name
        if not name.startswith("gated/"):
            assert thresholds.max_requests >= 1_000_000
            assert thresholds.max_connections >= 1_000_000


@with_every_envoy
def test_chains_enter_a_tier_with_a_limit_by_its_gate_where_its_503_can_be_retried(capability):
    for name, chain in chains(capability).items():
        if name.startswith("gated/"):
            assert all(each.endswith(("/gate", "/static")) for each in members(chain))


@with_every_envoy
def test_bodies_of_more_than_a_megabyte_pass_every_cluster_and_listener(capability):
    for name, cluster in {**tiers(capability)}.items():
        assert cluster.per_connection_buffer_limit_bytes >= 8 << 20, name
    for name, each in snapshot(capability).of_type(served.LISTENER).resources.items():
        listener = parse(served.LISTENER, each.body)
        assert listener.per_connection_buffer_limit_bytes >= 8 << 20, name


@with_every_envoy
def test_the_static_tier_reads_requests_to_their_end_so_that_connections_stay(capability):
    for name, each in snapshot(capability).of_type(served.LISTENER).resources.items():
        if name.startswith("static/"):
            manager = parse_any(
                parse(served.LISTENER, each.body).filter_chains[0].filters[0].typed_config
            )
            assert manager.http_filters[0].name == "envoy.filters.http.buffer"
