"""Whatever a plan holds, proxies are sent numbers that they accept (R40)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_plan, a_topology
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import ClusterLoadAssignment, RouteConfiguration
from xds_server.resources.routing.route_table import positive_sum

UINT32_MAX = 2**32 - 1
TOPOLOGY = a_topology(a_model("chat"), a_model("code", prefix="/code/"))
INSTANCES = [instance.id for _, _, instance in TOPOLOGY.instances()]
BUILDERS = {each: SnapshotBuilder(TOPOLOGY, Policy(), each) for each in Capability}

any_weight = st.one_of(
    st.integers(0, 2000), st.sampled_from([-1, 0, UINT32_MAX, 2**32, 2**70]), st.integers()
)


@given(
    split=st.lists(any_weight, min_size=3, max_size=3),
    weights=st.dictionaries(st.sampled_from(INSTANCES), any_weight),
    health=st.dictionaries(st.sampled_from(INSTANCES), st.sampled_from(list(EndpointHealth))),
    capability=st.sampled_from(list(Capability)),
)
@settings(max_examples=200, deadline=None)
def test_no_plan_yields_numbers_that_proxies_refuse(split, weights, health, capability):
    snapshot = BUILDERS[capability].build(a_plan(TOPOLOGY, split, weights=weights, health=health))
    for resource in snapshot.of_type(served.ENDPOINT).resources.values():
        for locality in ClusterLoadAssignment.FromString(resource.body).endpoints:
            each = [one.load_balancing_weight.value for one in locality.lb_endpoints]
            assert min(each) >= 1
            assert sum(each) <= UINT32_MAX
    table = RouteConfiguration.FromString(snapshot.of_type(served.ROUTE).resources["llm"].body)
    routes = [route for host in table.virtual_hosts for route in host.routes]
    assert {route.name for route in routes} == {"chat", "code"}
    for route in routes:
        if not route.route.HasField("weighted_clusters"):  # a strict route
            continue
        clusters = route.route.weighted_clusters.clusters
        assert all(each.HasField("weight") for each in clusters)
        assert 1 <= sum(each.weight.value for each in clusters) <= UINT32_MAX


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5).filter(any))
def test_good_weights_are_served_as_they_are(weights):
    assert positive_sum(weights) == weights


def test_a_plan_that_sends_requests_nowhere_sends_them_down_the_first_chain():
    assert positive_sum([0, 0, 0]) == [1000, 0, 0]
    assert positive_sum([-5, 0, 0]) == [1000, 0, 0]


plans = st.builds(
    lambda split, weights, health, rules: a_plan(
        TOPOLOGY, split, weights=weights, health=health, rules=rules
    ),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.dictionaries(st.sampled_from(INSTANCES), st.integers(0, 3)),
    st.dictionaries(st.sampled_from(INSTANCES), st.sampled_from(list(EndpointHealth))),
    st.lists(st.sampled_from(["fits", "kv_pressure", "tier_limit"]), max_size=2),
)


@given(st.lists(plans, min_size=1, max_size=4), st.sampled_from(list(Capability)))
@settings(max_examples=60, deadline=None)
def test_what_is_served_depends_on_the_last_plan_only(history, capability):
    fresh = SnapshotBuilder(TOPOLOGY, Policy(), capability).build(history[-1])
    for plan in history:
        used = BUILDERS[capability].build(plan)
    for kind, types in fresh.types.items():
        assert used.of_type(kind).version == types.version
        assert used.of_type(kind).resources == types.resources
