"""Two libraries, one set of bytes: typed messages author, upb serves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.model import StaticAnswer
from xds_server.core.policy import (
    FailurePolicy,
    HealthPolicy,
    Policy,
    RewritePolicy,
)
from xds_server.resources import clusters, endpoints, listeners
from xds_server.resources import snapshot as served
from xds_server.resources.bodies import rewrite
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.names import chain_name, cluster_name, static_listener_name
from xds_server.resources.proto import (
    Cluster,
    ClusterLoadAssignment,
    Listener,
    Route,
    RouteConfiguration,
    parse,
    serialize,
    to_upb,
    typed,
)
from xds_server.resources.routing import routes
from xds_server.resources.static import static_tier

UPB = {
    served.CLUSTER: Cluster,
    served.ENDPOINT: ClusterLoadAssignment,
    served.LISTENER: Listener,
    served.ROUTE: RouteConfiguration,
}
FAILURES = FailurePolicy(
    header_timeout_s=2.5, token_stall_s=17, consecutive=5, answer_timeout_s=None
)
TOPOLOGY = a_topology(
    a_model("chat", domains=["a.example", "b.example"]),
    a_model("100%", domains=["a.example"], prefix="/"),
    a_model(
        "code",
        tiers=[
            a_tier("primary", "big", [1, 2, 3], prefix="code-"),
            a_tier("second", "medium", [4], prefix="code-"),
            a_tier("third", "small", [5], prefix="code-"),
            a_static_tier(StaticAnswer(status=503, body={"error": "busy"}, retry_after_s=3)),
        ],
    ),
)


def same(type_url, message):
    """Return a typed message in the bytes that are served."""
    return serialize(to_upb(UPB[type_url], message))


every_capability = pytest.mark.parametrize("capability", list(Capability))


def snapshot(capability):
    builder = SnapshotBuilder(TOPOLOGY, Policy(failures=FAILURES), capability)
    plan = a_plan(a_topology(*TOPOLOGY.models))
    return builder.build(plan)


def every_body(capability):
    for kind in snapshot(capability).types.values():
        for resource in kind.resources.values():
            yield kind.type_url, resource.body


@every_capability
def test_served_bytes_mean_the_same_to_both_libraries(capability):
    """They differ in the order of fields where the protocol declares them out of order."""
    for type_url, body in every_body(capability):
        assert serialize(UPB[type_url].FromString(body)) == body
        assert same(type_url, parse(type_url, body)) == body


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
def test_a_cluster_with_names_set_equals_one_authored_with_them(capability):
    resources = snapshot(capability).of_type(served.CLUSTER).resources
    expected = {}
    for model in TOPOLOGY.models:
        names = [cluster_name(model.name, tier.name) for tier in model.tiers]
        for index, tier in enumerate(model.tiers):
            name = names[index]
            if tier.is_static:
                expected[name] = clusters.author_static_cluster(
                    name,
                    index=index,
                    listener=static_listener_name(model.name),
                    served=static_tier.served_name(tier),
                    final=model.name == "code",  # it answers 503
                )
                continue
            traits = clusters.TierTraits.of(model, tier, failures=FAILURES, health=HealthPolicy())
            expected[name] = clusters.author_tier_cluster(
                name, traits=traits, capability=capability
            )
            chain = chain_name(model.name, tier.name)
            expected[chain] = clusters.author_chain(
                chain, start=index, members=names[index:], capability=capability, rewrites=True
            )
    assert {name: resource.body for name, resource in resources.items()} == {
        name: same(served.CLUSTER, message) for name, message in expected.items()
    }


def test_a_listener_with_its_name_set_equals_one_authored_with_it():
    resources = snapshot(Capability.COMPOSITE).of_type(served.LISTENER).resources
    expected = {"llm": listeners.author_listener(TOPOLOGY, Policy(failures=FAILURES))}
    for model in TOPOLOGY.models:
        expected[static_listener_name(model.name)] = static_tier.author_static_listener(
            model, model.tiers[-1]
        )
    assert {name: resource.body for name, resource in resources.items()} == {
        name: same(served.LISTENER, message) for name, message in expected.items()
    }


@every_capability
def test_an_assignment_with_names_set_equals_one_authored_with_them(capability):
    resources = snapshot(capability).of_type(served.ENDPOINT).resources
    for model in TOPOLOGY.models:
        for index, tier in enumerate(model.tiers):
            if tier.is_static:
                continue
            expected = endpoints.author_assignment(cluster_name(model.name, tier.name))
            told = rewrite.instruction(model, tier, RewritePolicy())
            assert told
            for instance in tier.instances:
                endpoint = endpoints.author_endpoint(
                    instance, serves=tier.serves, index=index, told=told
                )
                endpoint.load_balancing_weight = 1000
                expected.endpoints[0].lb_endpoints.append(endpoint)
            assert resources[expected.cluster_name].body == same(served.ENDPOINT, expected)


@every_capability
def test_a_route_with_names_set_equals_one_authored_with_them(capability):
    body = snapshot(capability).of_type(served.ROUTE).resources["llm"].body
    table = parse(served.ROUTE, body)
    authored = {
        model.name: bytes(route)
        for model in TOPOLOGY.models
        for route in routes.author_routes(model, failures=FAILURES, capability=capability)
    }
    found = [
        (route.name, bytes(route))
        for host in table.virtual_hosts
        for route in host.routes
        if not route.route.cluster  # test_no_fallback.py looks at the strict routes
    ]
    assert len(found) == 4, "two on a.example, one on b.example, one on *"
    assert all(authored[name] == route for name, route in found)


def test_fields_newer_than_the_serving_library_survive_a_weight_change():
    """xds-protos 1.85 knows neither `refresh_cluster_on_retry` nor the composite cluster."""
    model = TOPOLOGY.models[0]
    (newer,) = routes.author_routes(model, failures=FAILURES, capability=Capability.COMPOSITE)
    newer.route.retry_policy.refresh_cluster_on_retry = True
    route = to_upb(Route, newer)
    assert "refresh_cluster_on_retry" not in route.route.retry_policy.DESCRIPTOR.fields_by_name
    table = RouteConfiguration()
    table.virtual_hosts.add().routes.add().CopyFrom(route)
    served_route = table.virtual_hosts[0].routes[0]
    served_route.route.weighted_clusters.clusters[0].weight.value = 7
    back = parse(served.ROUTE, serialize(table)).virtual_hosts[0].routes[0]
    assert back.route.retry_policy.refresh_cluster_on_retry is True
    assert back.route.weighted_clusters.clusters[0].weight == 7

    chain = snapshot(Capability.COMPOSITE).of_type(served.CLUSTER).resources["chat/primary/chain"]
    config = parse(served.CLUSTER, chain.body).cluster_type.typed_config.unpack()
    assert [each.name for each in config.clusters] == [
        "chat/primary",
        "chat/fallback",
        "chat/static",
    ]


def test_an_unknown_module_of_the_typed_library_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        typed.nonsense  # noqa: B018


def test_the_typed_library_is_not_loaded_before_something_is_authored():
    code = (
        "import sys, xds_server.resources.builder, xds_server.resources.render\n"
        "assert 'envoy_data_plane' not in sys.modules and 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_authoring_a_listener_for_a_tier_with_engines_is_an_error():
    model = TOPOLOGY.models[0]
    with pytest.raises(ValueError, match="chat/primary has no answer"):
        static_tier.author_static_listener(model, model.tiers[0])
