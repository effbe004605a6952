"""What classes of requests add to routes and chains, and that nothing is added without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core import classes
from xds_server.core.model import ClassName, RequestClass, WhenCritical
from xds_server.core.plan import Level
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import Cluster, RouteConfiguration
from xds_server.resources.routing.request_classes import all_repeats, in_order, repeats

PLAIN = FailurePolicy(answer_timeout_s=None)
CORE = RequestClass(name=ClassName("core"), header="x-class", value="core", header_timeout_s=2.0)
REST = RequestClass(name=ClassName("rest"), header_timeout_s=5.0, retries=1)
BATCH = RequestClass(name=ClassName("batch"), prefix="/v1/batch/", header_timeout_s=15.0, retries=3)
ALL = (CORE, REST, BATCH)


def fleet(*models, request_classes=ALL):
    return replace(a_topology(*models), classes=request_classes)


class Builder:
    """A snapshot builder that is given plans as the fleet makes them."""

    def __init__(self, topology, *, failures=PLAIN, capability=Capability.COMPOSITE):
        self.topology = topology
        self.builder = SnapshotBuilder(topology, Policy(failures=failures), capability)

    def build(self, split=None, *, level=Level.HEALTHY, rules=()):
        plan = a_plan(self.topology, split, rules=rules)
        models = tuple(
            replace(model, tiers=(replace(model.tiers[0], level=level), *model.tiers[1:]))
            for model in plan.models
        )
        division = classes.initial(self.topology.classes)
        _, divided = classes.divide(division, replace(plan, models=models))
        return self.builder.build(divided)


def routes_of(snapshot):
    config = RouteConfiguration.FromString(snapshot.of_type(served.ROUTE).resources["llm"].body)
    return [route for host in config.virtual_hosts for route in host.routes]


def weighted(snapshot):
    """Return the routes that choose between chains, by name; those of streams come first."""
    found = {}
    for route in routes_of(snapshot):
        if route.route.HasField("weighted_clusters"):
            found.setdefault(route.name, []).append(route)
    return found


def weights(route):
    return [each.weight.value for each in route.route.weighted_clusters.clusters]


def test_every_class_has_routes_in_order_and_the_rest_comes_last():
    routes = weighted(Builder(fleet()).build())
    assert list(routes) == ["chat/core", "chat/batch", "chat/rest"]
    core, batch, rest = (routes[name][0] for name in routes)
    (condition,) = core.match.headers
    assert (condition.name, condition.string_match.exact) == ("x-class", "core")
    (condition,) = batch.match.headers
    assert (condition.name, condition.string_match.prefix) == (":path", "/v1/batch/")
    assert not rest.match.headers
    for route in (core, batch, rest):
        assert route.match.prefix == "/v1/"


def test_a_header_that_is_there_is_enough_where_no_value_is_told():
    there = (replace(CORE, value=None), REST)
    (route,) = weighted(Builder(fleet(request_classes=there)).build())["chat/core"]
    assert route.match.headers[0].present_match


def test_a_header_and_a_prefix_must_both_fit():
    both = (replace(CORE, prefix="/v1/x/"), REST)
    (route,) = weighted(Builder(fleet(request_classes=both)).build())["chat/core"]
    assert [each.name for each in route.match.headers] == [":path", "x-class"]


def test_every_class_has_its_own_weights_and_reasons():
    builder = Builder(fleet())
    routes = weighted(builder.build([500, 300, 200], rules=["kv_pressure", "tier_limit", "x"]))
    assert weights(routes["chat/core"][0]) == [1000, 0, 0]
    assert weights(routes["chat/rest"][0]) == [500, 500, 0]
    assert weights(routes["chat/batch"][0]) == [0, 400, 600]
    (_, fallback, static) = routes["chat/batch"][0].route.weighted_clusters.clusters
    assert fallback.response_headers_to_add[0].header.value == "kv_pressure"
    assert static.response_headers_to_add[0].header.value == "tier_limit"


def test_times_of_classes_hold_for_streams_and_the_policys_for_plain_answers():
    failures = FailurePolicy(header_timeout_s=3.0, answer_timeout_s=120.0)
    routes = weighted(Builder(fleet(), failures=failures).build())
    for name, seconds in {"core": 2, "rest": 5, "batch": 15}.items():
        streams, plain = routes[f"chat/{name}"]
        assert streams.route.retry_policy.per_try_timeout.ToSeconds() == seconds
        assert plain.route.retry_policy.per_try_timeout.ToSeconds() == 120
    without = (replace(CORE, header_timeout_s=None), REST)
    streams, _ = weighted(Builder(fleet(request_classes=without), failures=failures).build())[
        "chat/core"
    ]
    assert streams.route.retry_policy.per_try_timeout.ToSeconds() == 3


CHAINS = {
    # tiers with engines -> per class: retries of the route, chains of the tiers
    1: {"core": (1, ["t0/chain"]), "rest": (2, ["t0/chain/1"]), "batch": (3, ["t0/chain/2"])},
    2: {
        "core": (2, ["t0/chain", "t1/chain"]),
        "rest": (3, ["t0/chain/1", "t1/chain/1"]),
        "batch": (3, ["t0/chain/1", "t1/chain/2"]),
    },
}


def long_model(engines):
    tiers = [a_tier(f"t{index}", "x", [index + 1]) for index in range(engines)]
    return a_model(tiers=[*tiers, a_static_tier()])


@pytest.mark.parametrize("engines", CHAINS)
def test_more_attempts_repeat_the_first_tier_of_a_chain(engines):
    snapshot = Builder(fleet(long_model(engines))).build()
    clusters = snapshot.of_type(served.CLUSTER).resources
    for name, (retries, chains) in CHAINS[engines].items():
        (route,) = weighted(snapshot)[f"chat/{name}"]
        assert route.route.retry_policy.num_retries.value == retries
        *found, static = (each.name for each in route.route.weighted_clusters.clusters)
        assert found == [f"chat/{chain}" for chain in chains]
        assert static == "chat/static"
        for start, chain in enumerate(found):
            repeated = int(chain.rpartition("chain")[2].strip("/") or 0)
            body = Cluster.FromString(clusters[chain].body).cluster_type.typed_config.value
            assert body.count(b"chat/t%d" % start) == 1 + repeated
            assert body.count(b"chat/static") == 1, "the way down stays whole"


@given(retries=st.integers(0, 3), walk=st.integers(0, 3))
def test_all_attempts_together_are_bounded_and_the_way_down_is_kept(retries, walk):
    more = repeats(replace(REST, retries=retries), walk=walk, capability=Capability.COMPOSITE)
    assert 0 <= more <= retries
    assert walk + more <= 3


@pytest.mark.parametrize("capability", [Capability.AGGREGATE, Capability.GRPC])
def test_only_composite_chains_can_repeat(capability):
    assert repeats(BATCH, walk=1, capability=capability) == 0
    assert all_repeats(ALL, walk=1, capability=capability) == ()


def test_without_a_class_nothing_is_repeated():
    assert repeats(None, walk=1, capability=Capability.COMPOSITE) == 0


def test_only_repeated_attempts_look_for_another_endpoint():
    routes = weighted(Builder(fleet()).build())
    assert not routes["chat/core"][0].route.retry_policy.retry_host_predicate
    (predicate,) = routes["chat/rest"][0].route.retry_policy.retry_host_predicate
    assert predicate.name == "envoy.retry_host_predicates.previous_hosts"


def test_engines_logs_and_limiters_learn_the_class():
    for name, routes in weighted(Builder(fleet()).build()).items():
        for route in routes:
            (mark,) = route.request_headers_to_add
            assert f"chat/{mark.header.value}" == name
            assert mark.header.key == "x-request-class"
            fields = route.metadata.filter_metadata["llm"].fields
            assert fields["class"].string_value == mark.header.value


def test_clients_without_a_proxy_have_no_classes():
    assert in_order(ALL, Capability.GRPC) == ()
    assert list(weighted(Builder(fleet(), capability=Capability.GRPC).build())) == ["chat"]


REJECTING = (CORE, REST, replace(BATCH, when_critical=WhenCritical.REJECT))
ANSWERING = (CORE, REST, replace(BATCH, when_critical=WhenCritical.STATIC))


def switch(snapshot):
    """Return the rejection's numerator and what comes right after it."""
    routes = routes_of(snapshot)
    (index,) = (i for i, route in enumerate(routes) if route.direct_response.status)
    fraction = routes[index].match.runtime_fraction
    assert fraction.HasField("default_value")
    assert all(route.name != "chat/batch" for route in routes[:index])
    return fraction.default_value.numerator


def test_a_rejection_is_a_number_in_the_routes():
    builder = Builder(fleet(request_classes=REJECTING))
    calm = builder.build([800, 200, 0])
    assert switch(calm) == 0
    pressed = builder.build([800, 200, 0], level=Level.CRITICAL)
    assert switch(pressed) == 100
    changed = [url for url in calm.types if calm.versions.get(url) != pressed.versions.get(url)]
    assert changed == [served.ROUTE]
    assert switch(builder.build([800, 200, 0])) == 0


def test_what_forbids_the_static_answer_is_rejected_instead():
    builder = Builder(fleet(request_classes=ANSWERING))
    assert switch(builder.build()) == 0
    pressed = builder.build(level=Level.CRITICAL)
    assert switch(pressed) == 100
    (route,) = (route for route in routes_of(pressed) if route.direct_response.status)
    assert [each.name for each in route.match.headers] == [":path", "x-no-fallback"]
    (shed,) = weighted(pressed)["chat/batch"]
    assert weights(shed) == [0, 0, 1000]
    static = shed.route.weighted_clusters.clusters[-1]
    assert static.response_headers_to_add[0].header.value == "class_shed"


def test_a_rejected_requests_body_is_read_before_it_is_answered():
    for request_classes, reads in ((ALL, False), (REJECTING, True), (ANSWERING, True)):
        snapshot = Builder(fleet(request_classes=request_classes)).build()
        listener = snapshot.of_type(served.LISTENER).resources["llm"].body
        assert (b"envoy.filters.http.lua" in listener) is reads


def test_a_plan_that_knows_no_classes_gives_all_the_weights_of_the_tiers():
    topology = fleet()
    builder = SnapshotBuilder(topology, Policy(failures=PLAIN), Capability.COMPOSITE)
    for routes in weighted(builder.build(a_plan(topology, [600, 300, 100]))).values():
        assert [weights(route) for route in routes] == [[600, 300, 100]]


def test_a_model_in_two_virtual_hosts_has_the_same_class_weights_in_both():
    one = a_model("one", domains=["a", "b"], prefix="/1/")
    two = a_model("two", domains=["b"], prefix="/2/")
    routes = weighted(Builder(fleet(one, two, request_classes=REJECTING)).build([500, 300, 200]))
    assert [weights(route) for route in routes["one/batch"]] == [[0, 400, 600]] * 2


def test_without_classes_nothing_is_added():
    with_none, plain = fleet(request_classes=()), a_topology()
    snapshot, expected = Builder(with_none).build(), Builder(plain).build()
    assert snapshot.versions == expected.versions
    for route in routes_of(snapshot):
        assert route.name == "chat"
        assert not route.request_headers_to_add
        assert not route.metadata.filter_metadata
    assert set(snapshot.of_type(served.CLUSTER).resources) == {
        "chat/primary",
        "chat/primary/chain",
        "chat/fallback",
        "chat/fallback/chain",
        "chat/static",
    }
