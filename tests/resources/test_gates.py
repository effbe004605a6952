"""What limits add to the resources, and that they add nothing where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from tests.fakes.plans import a_model, a_plan, a_topology
from xds_server.core.limits import Limit, Tenants
from xds_server.core.model import ClassName, RequestClass
from xds_server.core.policy import Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.limits.entrances import gate_name
from xds_server.resources.limits.gates import EARLIER, PATIENCE_HEADER, Patience
from xds_server.resources.proto import Cluster
from xds_server.resources.snapshot import CLUSTER, EXTENSION_CONFIG, LISTENER, ROUTE

ENVOYS = [Capability.COMPOSITE, Capability.AGGREGATE]


def limited(**limit):
    """A model whose first two tiers have a limit."""
    model = a_model()
    gated = Limit(**limit) if limit else Limit(tokens_per_second=100, concurrency=4)
    tiers = (*(replace(tier, limit=gated) for tier in model.tiers[:2]), model.tiers[2])
    return replace(model, tiers=tiers, limit=Limit(tokens_per_second=1000))


def topology():
    classes = (
        RequestClass(name=ClassName("core"), header="x-c", header_timeout_s=2.0),
        RequestClass(name=ClassName("rest"), header_timeout_s=15.0, retries=3),
    )
    tenants = Tenants(header="x-tenant", others=Limit(requests_per_second=1))
    return replace(a_topology(limited()), classes=classes, tenants=tenants)


def built(topology, capability=Capability.COMPOSITE, split=None):
    return SnapshotBuilder(topology, Policy(), capability).build(a_plan(topology, split))


def manager_of(snapshot, name):
    listener = Listener.FromString(snapshot.of_type(LISTENER).resources[name].body)
    packed = listener.filter_chains[0].filters[0].typed_config.value
    return HttpConnectionManager.FromString(packed)


@pytest.mark.parametrize("capability", ENVOYS)
def test_weights_leave_limiters_gates_and_listeners_as_they_were(capability):
    builder = SnapshotBuilder(topology(), Policy(), capability)
    before = builder.build(a_plan(topology(), [900, 100, 0]))
    after = builder.build(a_plan(topology(), [100, 800, 100]))
    for url in (CLUSTER, LISTENER, EXTENSION_CONFIG):
        assert before.of_type(url).version == after.of_type(url).version
    assert before.of_type(ROUTE).version != after.of_type(ROUTE).version


def test_without_limits_nothing_of_them_is_served():
    snapshot = built(a_topology())
    assert EXTENSION_CONFIG not in snapshot.types
    assert snapshot.limiters is None
    bodies = b"".join(
        each.body
        for url in (CLUSTER, LISTENER, ROUTE)
        for each in snapshot.of_type(url).resources.values()
    )
    for word in (b"local_ratelimit", b"/gate", b"x-fleet-patience", b"x-estimated-tokens"):
        assert word not in bodies


def test_proxyless_clients_get_no_gates():
    snapshot = built(topology(), Capability.GRPC)
    assert EXTENSION_CONFIG not in snapshot.types
    assert set(snapshot.of_type(CLUSTER).resources) == {"chat/primary", "chat/fallback"}


def test_the_limiter_comes_after_what_it_counts_and_before_what_answers():
    filters = [each.name for each in manager_of(built(topology()), "llm").http_filters]
    facts, net = "envoy.filters.http.lua", "envoy.filters.http.custom_response"
    order = [filters.index(each) for each in (facts, "limits/tenants", "limits/models", net)]
    assert order == sorted(order)


@pytest.mark.parametrize("capability", ENVOYS)
def test_chains_and_strict_routes_enter_a_limited_tier_by_its_gate(capability):
    model = limited()
    gates = [gate_name(model, tier) for tier in model.tiers[:2]]
    snapshot = built(topology(), capability)
    clusters = snapshot.of_type(CLUSTER).resources
    assert set(gates) <= set(clusters)
    chain = Cluster.FromString(clusters["chat/primary/chain"].body)
    members = chain.cluster_type.typed_config.value
    at = [members.find(name.encode()) for name in (*gates, "chat/static")]
    assert sorted(at) == at
    assert at[0] >= 0
    route = snapshot.of_type(ROUTE).resources["llm"]
    assert gates[0] in route.needs
    assert "chat/primary" not in route.needs


def test_a_gate_knows_every_time_limit_that_a_route_tells_and_is_a_little_earlier():
    snapshot = built(topology())
    table = RouteConfiguration.FromString(snapshot.of_type(ROUTE).resources["llm"].body)
    told = set()
    for route in table.virtual_hosts[0].routes:
        headers = {each.header.key: each.header.value for each in route.request_headers_to_add}
        if route.HasField("route"):
            assert headers[PATIENCE_HEADER] == str(Patience.of(route))
            told.add(headers[PATIENCE_HEADER])
    assert len(told) >= 3
    gate = manager_of(snapshot, "chat/primary/gate").route_config.virtual_hosts[0]
    known = {}
    *told_apart, rest = gate.routes
    assert not rest.match.headers, "a change of the times reaches listeners before routes"
    for route in told_apart:
        (header,) = route.match.headers
        limit = route.route.retry_policy.per_try_timeout.ToTimedelta().total_seconds()
        known[header.string_match.exact] = limit
        assert PATIENCE_HEADER in route.request_headers_to_remove
    assert set(known) == told
    for text, limit in known.items():
        assert limit == pytest.approx(float(text.split("/")[0]) * EARLIER)


@pytest.mark.parametrize(
    ("limit", "breakers"),
    [
        pytest.param({"concurrency": 4}, (10**6, 10**6, 4), id="no queue: requests are counted"),
        pytest.param({"concurrency": 4, "queue": 0}, (10**6, 10**6, 4), id="a queue of none"),
        pytest.param({"concurrency": 4, "queue": 9}, (4, 9, 10**6), id="a queue for connections"),
        pytest.param({"concurrency": 4, "queue": 2}, (4, 4, 10**6), id="room for connections"),
        pytest.param({"tokens_per_second": 5}, (10**6, 10**6, 10**6), id="only a rate"),
    ],
)
def test_concurrency_and_queue_become_breakers_of_the_tiers_own_cluster(limit, breakers):
    snapshot = built(a_topology(limited(**limit)))
    for name, expected in (("chat/primary", breakers), ("chat/primary/gate", (10**6,) * 3)):
        cluster = Cluster.FromString(snapshot.of_type(CLUSTER).resources[name].body)
        (found,) = cluster.circuit_breakers.thresholds
        assert expected == (
            found.max_connections.value,
            found.max_pending_requests.value,
            found.max_requests.value,
        )
