"""Health checks, affinity and load reports as proxies get them; each field stands for something seen on Envoy 1.40."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.plans import a_model, a_plan, a_topology
from xds_server.core.model import Affinity, AffinityPolicy, Telemetry
from xds_server.core.policy import HealthPolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.render import render

ALL = list(Capability)
CHAINS = [Capability.COMPOSITE, Capability.AGGREGATE]
ACTIVE = Policy(health=HealthPolicy(active=True))
SESSION = Affinity(header="x-session-id")


def changed(**options):
    model = a_model()
    first, *rest = model.tiers
    return replace(model, tiers=(replace(first, **options), *rest))


def built(model=None, policy=None, capability=Capability.COMPOSITE):
    topology = a_topology(model or a_model())
    return SnapshotBuilder(topology, policy or Policy(), capability).build(a_plan(topology))


def clusters(*args, **kwargs):
    found = render(built(*args, **kwargs))["clusters"]["resources"]
    return {name: each["resource"] for name, each in found.items()}


def routes(*args, **kwargs):
    table = render(built(*args, **kwargs))["routes"]["resources"]["llm"]["resource"]
    found = [route for host in table["virtual_hosts"] for route in host["routes"]]
    return [route for route in found if "weighted_clusters" in route.get("route", {})]


def versions(snapshot):
    return {
        url: snapshot.of_type(url).version
        for url in (served.CLUSTER, served.LISTENER, served.ROUTE)
    }


@pytest.mark.parametrize("capability", ALL)
def test_what_is_not_configured_leaves_no_byte_anywhere(capability):
    plain = built(capability=capability)
    other = built(
        changed(health_path="/x"), Policy(health=HealthPolicy(path="/y")), capability=capability
    )
    assert versions(plain) == versions(other)
    for cluster in clusters(capability=capability).values():
        assert "health_checks" not in cluster
        assert "lrs_report_endpoint_metrics" not in cluster
    for route in routes(capability=capability):
        assert "hash_policy" not in route["route"]
        assert "request_headers_to_add" not in route


@pytest.mark.parametrize("capability", CHAINS)
def test_a_check_has_everything_that_envoys_defaults_would_get_wrong(capability):
    found = clusters(changed(health_path="/ping"), ACTIVE, capability)
    first, second = found["chat/primary"], found["chat/fallback"]
    (check,) = first["health_checks"]
    assert check["interval"] == check["no_traffic_interval"] == "5s"
    assert check["no_traffic_healthy_interval"] == "5s", "by default once a minute"
    assert check["timeout"] == "5s"
    assert (check["unhealthy_threshold"], check["healthy_threshold"]) == (3, 2)
    assert check["reuse_connection"] is False, "llama.cpp has a thread per connection"
    http = check["http_health_check"]
    assert http["path"] == "/ping"
    assert http["host"] == "localhost"
    assert http["retriable_statuses"] == [{"start": 100, "end": 600}], "one 503 is a hiccup"
    assert first["ignore_health_on_host_removal"] is True
    assert first["outlier_detection"]["successful_active_health_check_uneject_host"] is False
    slow = first["round_robin_lb_config"]["slow_start_config"]
    assert slow == {"slow_start_window": "60s", "min_weight_percent": {"value": 10.0}}
    assert second["health_checks"][0]["http_health_check"]["path"] == "/health"
    assert all("health_checks" not in found[name] for name in found if "chain" in name)
    assert "health_checks" not in found["chat/static"]


def test_a_return_at_once_has_no_slow_start_and_neither_has_a_hash():
    at_once = Policy(health=HealthPolicy(active=True, return_s=0.0))
    assert "round_robin_lb_config" not in clusters(policy=at_once)["chat/primary"]
    hashed = clusters(changed(affinity=SESSION), ACTIVE)["chat/primary"]
    assert "health_checks" in hashed
    assert "round_robin_lb_config" not in hashed, "Envoy refuses it there"


@pytest.mark.parametrize("capability", CHAINS)
@pytest.mark.parametrize("policy", list(AffinityPolicy))
def test_affinity_is_the_tiers_balancing_and_the_routes_hash(policy, capability):
    model = changed(affinity=replace(SESSION, policy=policy))
    found = clusters(model, capability=capability)
    assert found["chat/primary"]["lb_policy"] == policy.upper()
    assert found["chat/fallback"].get("lb_policy", "ROUND_ROBIN") == "ROUND_ROBIN"
    assert found["chat/primary/chain"]["lb_policy"] == "CLUSTER_PROVIDED"
    for route in routes(model, capability=capability):
        assert route["route"]["hash_policy"] == [{"header": {"header_name": "x-session-id"}}]
        assert "use_hash_policy" not in route["route"]["weighted_clusters"]


def test_what_an_endpoint_may_have_more_than_its_share_is_in_percent():
    model = changed(affinity=replace(SESSION, overflow_ratio=1.5))
    common = clusters(model)["chat/primary"]["common_lb_config"]
    assert common["consistent_hashing_lb_config"] == {"hash_balance_factor": 150}
    plain = clusters(changed(affinity=SESSION))["chat/primary"]["common_lb_config"]
    assert "consistent_hashing_lb_config" not in plain


@pytest.mark.parametrize(
    ("affinity", "cookie"),
    [
        (Affinity(cookie="s"), {"name": "s", "path": "/"}),
        (Affinity(cookie="s", cookie_ttl_s=0.0), {"name": "s", "path": "/", "ttl": "0s"}),
        (Affinity(cookie="s", cookie_ttl_s=90.0), {"name": "s", "path": "/", "ttl": "90s"}),
    ],
)
def test_a_cookie_is_given_only_with_a_time_to_live(affinity, cookie):
    for route in routes(changed(affinity=affinity)):
        assert route["route"]["hash_policy"] == [{"cookie": cookie}]


@pytest.mark.parametrize("capability", CHAINS)
def test_reports_are_collected_by_chains_and_asked_for_by_routes(capability):
    model = changed(telemetry=Telemetry.ORCA)
    found = clusters(model, capability=capability)
    for name, cluster in found.items():
        # The tier's own cluster is what the route of a gate names.
        asked = name.endswith("/chain") or name == "chat/primary"
        wanted = ["named_metrics.*"] if asked else None
        assert cluster.get("lrs_report_endpoint_metrics") == wanted, name
    for route in routes(model, capability=capability):
        (asked,) = route["request_headers_to_add"]
        assert asked["header"] == {"key": "endpoint-load-metrics-format", "value": "TEXT"}
        assert asked["append_action"] == "OVERWRITE_IF_EXISTS_OR_ADD"
        assert {"endpoint-load-metrics", "endpoint-load-metrics-bin"} <= set(
            route["response_headers_to_remove"]
        )


@pytest.mark.parametrize("options", [{"affinity": SESSION}, {"telemetry": Telemetry.ORCA}])
def test_proxyless_grpc_gets_plain_clusters_whatever_the_options(options):
    grpc = Capability.GRPC
    for url in (served.CLUSTER, served.ROUTE):
        assert (
            built(changed(**options), ACTIVE, grpc).of_type(url).version
            == built(capability=grpc).of_type(url).version
        )


def test_a_weight_moves_no_cluster_and_no_listener_with_all_options_on():
    topology = a_topology(changed(affinity=SESSION, telemetry=Telemetry.ORCA))
    builder = SnapshotBuilder(topology, ACTIVE, Capability.COMPOSITE)
    before = builder.build(a_plan(topology))
    after = builder.build(a_plan(topology, [500, 400, 100], weights={"chat-primary-0": 10}))
    for url in (served.CLUSTER, served.LISTENER):
        assert before.of_type(url).version == after.of_type(url).version
    assert before.of_type(served.ROUTE).version != after.of_type(served.ROUTE).version
