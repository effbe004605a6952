"""Strict routes: what a request that forbids a fallback is given."""

from __future__ import annotations

import pytest

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_topology
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import RouteConfiguration

with_chains = pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])


def routes(*models, capability=Capability.COMPOSITE, split=None, **failures):
    topology = a_topology(*models)
    builder = SnapshotBuilder(topology, Policy(failures=FailurePolicy(**failures)), capability)
    resource = builder.build(a_plan(topology, split)).of_type(served.ROUTE).resources["llm"]
    table = RouteConfiguration.FromString(resource.body)
    return resource, list(table.virtual_hosts[0].routes)


@with_chains
def test_each_route_has_a_strict_twin_before_it_that_knows_the_first_tier_only(capability):
    _, (strict, stream, strict_plain, plain) = routes(capability=capability)
    for twin, route in ((strict, stream), (strict_plain, plain)):
        assert twin.route.cluster == "chat/primary"
        assert twin.match.prefix == route.match.prefix
        assert twin.match.dynamic_metadata == route.match.dynamic_metadata
        (condition,) = twin.match.headers
        assert condition.name == "x-no-fallback"
        policy, other = twin.route.retry_policy, route.route.retry_policy
        assert policy.per_try_timeout == other.per_try_timeout
        assert twin.route.timeout == route.route.timeout
        assert policy.num_retries.value == 1
        assert "retriable-status-codes" not in policy.retry_on
        assert not policy.retriable_status_codes
        assert not policy.HasField("retry_priority")
        (predicate,) = policy.retry_host_predicate
        assert predicate.name == "envoy.retry_host_predicates.previous_hosts"


def test_a_strict_route_waits_for_its_cluster_and_ignores_weights():
    resource, before = routes(split=[1000, 0, 0])
    assert "chat/primary" in resource.needs
    _, after = routes(split=[0, 0, 1000])
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_what_has_no_first_tier_with_engines_has_no_strict_route():
    _, found = routes(a_model(tiers=[a_static_tier()]), answer_timeout_s=None)
    assert [each.route.HasField("weighted_clusters") for each in found] == [True]
    _, found = routes(capability=Capability.GRPC)
    assert [each.route.HasField("weighted_clusters") for each in found] == [True]
