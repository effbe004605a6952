"""Virtual hosts, reasons, retries and time-outs of the route table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import RouteConfiguration
from xds_server.resources.routing.routes import group_by_domains


def table(*models, split=None, rules=(), failures=None, capability=Capability.COMPOSITE):
    topology = a_topology(*models)
    policy = Policy(failures=failures or FailurePolicy(answer_timeout_s=None))
    snapshot = SnapshotBuilder(topology, policy, capability).build(
        a_plan(topology, split, rules=rules)
    )
    config = RouteConfiguration.FromString(snapshot.of_type(served.ROUTE).resources["llm"].body)
    for host in config.virtual_hosts:  # test_no_fallback.py looks at the strict routes
        weighted = [each for each in host.routes if each.route.HasField("weighted_clusters")]
        del host.routes[:]
        host.routes.extend(weighted)
    return config


def grouped(*models):
    return {
        domains: [model.name for model in sharing]
        for domains, sharing in group_by_domains(models).items()
    }


def test_models_that_share_a_domain_share_its_virtual_host_longest_prefix_first():
    short = a_model("short", prefix="/")
    long = a_model("long", prefix="/v1/code/")
    middle = a_model("middle", prefix="/v1/")
    assert grouped(short, long, middle) == {("*",): ["long", "middle", "short"]}


def test_a_domain_that_only_one_of_two_models_has_gets_its_own_virtual_host():
    one = a_model("one", domains=["a", "b"], prefix="/1/")
    two = a_model("two", domains=["b", "c"], prefix="/2/")
    assert grouped(one, two) == {("a",): ["one"], ("b",): ["one", "two"], ("c",): ["two"]}


@given(
    st.lists(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=4,
    )
)
def test_every_domain_is_in_one_virtual_host_with_all_of_its_models(domains):
    models = [
        a_model(str(index), domains=names, prefix=f"/{index}/")
        for index, names in enumerate(domains)
    ]
    hosts = group_by_domains(models)
    everywhere = [domain for group in hosts for domain in group]
    assert sorted(everywhere) == sorted({domain for names in domains for domain in names})
    for group, sharing in hosts.items():
        for domain in group:
            assert {model.name for model in sharing} == {
                model.name for model in models if domain in model.domains
            }


def test_a_model_in_two_virtual_hosts_has_the_same_weights_in_both():
    one = a_model("one", domains=["a", "b"], prefix="/1/")
    two = a_model("two", domains=["b"], prefix="/2/")
    routes = [
        route
        for host in table(one, two, split=[5, 6, 7]).virtual_hosts
        for route in host.routes
        if route.name == "one"
    ]
    assert len(routes) == 2
    for route in routes:
        clusters = route.route.weighted_clusters.clusters
        assert [each.weight.value for each in clusters] == [5, 6, 7]


def reasons(route):
    return [
        [header.header.value for header in each.response_headers_to_add]
        for each in route.route.weighted_clusters.clusters
    ]


def test_a_tier_gets_requests_because_of_what_the_tier_above_says():
    route = table(split=[1, 1, 1], rules=["kv_pressure", "tier_limit", "last_tier"])
    assert reasons(route.virtual_hosts[0].routes[0]) == [[], ["kv_pressure"], ["tier_limit"]]


def test_a_percent_sign_in_a_reason_is_no_command():
    route = table(split=[1, 1, 0], rules=["5%"]).virtual_hosts[0].routes[0]
    assert reasons(route)[1] == ["5%%"]


@pytest.mark.parametrize(("engines", "retries"), [(1, 1), (2, 2), (3, 2), (5, 2)])
def test_there_are_at_most_two_retries_and_never_more_than_the_chain_has_members(engines, retries):
    tiers = [a_tier(f"t{index}", "x", [index + 1]) for index in range(engines)]
    route = table(a_model(tiers=[*tiers, a_static_tier()])).virtual_hosts[0].routes[0].route
    assert route.retry_policy.num_retries.value == retries


def test_times_follow_the_policy_and_streams_have_no_end():
    failures = FailurePolicy(header_timeout_s=2.5, token_stall_s=40.0)
    route = table(failures=failures).virtual_hosts[0].routes[0].route
    assert route.HasField("timeout")
    assert route.timeout.ToMilliseconds() == 0
    assert route.retry_policy.per_try_timeout.ToMilliseconds() == 2500
    assert route.retry_policy.per_try_idle_timeout.ToMilliseconds() == 40_000
    assert route.idle_timeout.ToMilliseconds() == 40_000
    assert list(route.retry_policy.retriable_status_codes) == [429]


@pytest.mark.parametrize(
    ("header_timeout_s", "token_stall_s", "idle_ms"),
    [(3.0, 1.0, 9300), (3.0, 0.0, 0), (1.0, 600.0, 600_000)],
    ids=["attempts take longer than a stall", "no stall limit", "long stalls allowed"],
)
def test_the_idle_time_of_a_request_leaves_room_for_its_attempts(
    header_timeout_s, token_stall_s, idle_ms
):
    failures = FailurePolicy(header_timeout_s=header_timeout_s, token_stall_s=token_stall_s)
    route = table(failures=failures).virtual_hosts[0].routes[0].route
    assert route.idle_timeout.ToMilliseconds() == idle_ms


def test_older_proxies_are_told_to_leave_the_tier_that_failed():
    route = table(capability=Capability.AGGREGATE).virtual_hosts[0].routes[0].route
    assert route.retry_policy.retry_priority.name == "envoy.retry_priorities.previous_priorities"
    route = table(capability=Capability.COMPOSITE).virtual_hosts[0].routes[0].route
    assert not route.retry_policy.HasField("retry_priority")


def test_with_a_time_for_plain_answers_streams_get_a_route_of_their_own_first():
    failures = FailurePolicy(header_timeout_s=3.0, token_stall_s=30.0, answer_timeout_s=120.0)
    stream, plain = table(failures=failures, split=[1, 2, 3]).virtual_hosts[0].routes
    assert stream.match.dynamic_metadata[0].value.bool_match is True
    assert not plain.match.dynamic_metadata
    assert stream.route.retry_policy.per_try_timeout.ToSeconds() == 3
    assert plain.route.retry_policy.per_try_timeout.ToSeconds() == 120
    assert not plain.route.retry_policy.HasField("per_try_idle_timeout"), "nothing comes before"
    assert plain.route.idle_timeout.ToMilliseconds() == 3 * 120_100
    for route in (stream, plain):
        clusters = route.route.weighted_clusters.clusters
        assert [each.weight.value for each in clusters] == [1, 2, 3]


def test_plain_answers_may_take_for_ever():
    failures = FailurePolicy(answer_timeout_s=0.0)
    _, plain = table(failures=failures).virtual_hosts[0].routes
    assert plain.route.retry_policy.per_try_timeout.ToMilliseconds() == 0
    assert plain.route.HasField("idle_timeout")
    assert plain.route.idle_timeout.ToMilliseconds() == 0


def test_without_it_no_body_is_parsed():
    topology = a_topology()
    for answer_timeout_s, expected in ((None, False), (60.0, True)):
        policy = Policy(failures=FailurePolicy(answer_timeout_s=answer_timeout_s))
        builder = SnapshotBuilder(topology, policy, Capability.COMPOSITE)
        listener = builder.build(a_plan(topology)).of_type(served.LISTENER).resources["llm"]
        assert (b"envoy.filters.http.lua" in listener.body) is expected
