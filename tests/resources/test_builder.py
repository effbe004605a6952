"""The hot path: what a plan may change, and what it must leave as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.plans import (
    a_model,
    a_model_plan,
    a_plan,
    a_static_tier,
    a_tier,
    a_topology,
)
from xds_server.core.plan import EndpointHealth, Plan
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import PlanMismatchError, SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import ClusterLoadAssignment, RouteConfiguration

every_capability = pytest.mark.parametrize("capability", list(Capability))


def build(topology, capability=Capability.COMPOSITE, policy=None):
    return SnapshotBuilder(topology, policy or Policy(), capability)


def bodies(snapshot):
    return {
        (kind, name): resource.body
        for kind, types in snapshot.types.items()
        for name, resource in types.resources.items()
    }


def weights_of(snapshot, route=0):
    table = RouteConfiguration.FromString(snapshot.of_type(served.ROUTE).resources["llm"].body)
    actions = [each.route for each in table.virtual_hosts[0].routes]
    weighted = [each for each in actions if each.HasField("weighted_clusters")]
    clusters = weighted[route].weighted_clusters.clusters
    return {each.name: each.weight.value for each in clusters}


def assignment(snapshot, name="chat/primary"):
    return ClusterLoadAssignment.FromString(snapshot.of_type(served.ENDPOINT).resources[name].body)


@every_capability
def test_a_weight_change_leaves_every_cluster_and_listener_as_it_was(capability):
    topology = a_topology()
    builder = build(topology, capability)
    before = builder.build(a_plan(topology))
    after = builder.build(
        a_plan(
            topology,
            [100, 800, 100],
            rules=["kv_pressure"],
            weights={"chat-primary-0": 17},
            health={"chat-primary-1": EndpointHealth.UNHEALTHY},
        )
    )
    for kind in (served.CLUSTER, served.LISTENER):
        assert after.of_type(kind) is before.of_type(kind)
    assert after.of_type(served.ROUTE).version != before.of_type(served.ROUTE).version
    assert after.of_type(served.ENDPOINT).version != before.of_type(served.ENDPOINT).version


@every_capability
def test_equal_inputs_give_equal_bytes_whatever_was_served_before(capability):
    topology = a_topology(a_model("chat"), a_model("code", prefix="/code/"))
    wanted = a_plan(topology, [600, 300, 100], weights={"chat-primary-0": 5})
    used = build(topology, capability)
    used.build(a_plan(topology, [0, 0, 1000], rules=["kv_pressure", "tier_limit"]))
    fresh = build(topology, capability)
    assert bodies(used.build(wanted)) == bodies(fresh.build(wanted))


def test_the_same_plan_gives_the_same_snapshot_object():
    topology = a_topology()
    builder = build(topology)
    snapshot = builder.build(a_plan(topology))
    assert builder.build(a_plan(topology)) is snapshot, "equal by value"


def test_what_a_change_does_not_touch_keeps_its_resource_object():
    chat, code = a_model("chat"), a_model("code", prefix="/code/")
    topology = a_topology(chat, code)
    builder = build(topology)
    before = builder.build(a_plan(topology))
    moved = a_model_plan(chat, weights={"chat-primary-0": 3})
    after = builder.build(Plan(models=(moved, a_model_plan(code)), next_deadline=None))
    changed = {
        name
        for name, resource in after.of_type(served.ENDPOINT).resources.items()
        if resource is not before.of_type(served.ENDPOINT).resources[name]
    }
    assert changed == {"chat/primary"}
    assert after.of_type(served.ROUTE).resources == before.of_type(served.ROUTE).resources


def test_an_untouched_model_is_recognized_by_identity_and_not_looked_into():
    class Unreadable(tuple):
        __slots__ = ()

        def __iter__(self):
            raise AssertionError("looked into")

    chat = a_model("chat")
    topology = a_topology(chat)
    builder = build(topology)
    plan = a_model_plan(chat)
    snapshot = builder.build(Plan(models=(plan,), next_deadline=None))
    object.__setattr__(plan, "tiers", Unreadable(plan.tiers))
    assert builder.build(Plan(models=(plan,), next_deadline=1.0)) is snapshot


def test_weights_health_and_metadata_arrive():
    topology = a_topology()
    snapshot = build(topology).build(
        a_plan(
            topology,
            [700, 200, 100],
            weights={"chat-primary-0": 1234},
            health={"chat-primary-1": EndpointHealth.DRAINING},
        )
    )
    assert weights_of(snapshot) == {
        "chat/primary/chain": 700,
        "chat/fallback/chain": 200,
        "chat/static": 100,
    }
    one, two = assignment(snapshot).endpoints[0].lb_endpoints
    assert (one.load_balancing_weight.value, one.health_status) == (1234, 1)
    assert (two.load_balancing_weight.value, two.health_status) == (1, 3), "listed, draining"
    fields = one.metadata.filter_metadata["llm"].fields
    assert {key: value.string_value for key, value in fields.items()} == {
        "instance": "chat-primary-0",
        "model": "llama-3-70b",
        "rewrite": 'refuse - - - "llama-3-70b"',
    }
    fallback = assignment(snapshot, "chat/fallback").endpoints[0].lb_endpoints[0]
    fields = fallback.metadata.filter_metadata["llm"].fields
    assert fields["downgraded"].string_value == "true"


def test_the_weight_of_an_endpoint_out_of_rotation_causes_no_push():
    topology = a_topology()
    builder = build(topology)
    down = {"chat-primary-0": EndpointHealth.UNHEALTHY}
    before = builder.build(a_plan(topology, health=down, weights={"chat-primary-0": 900}))
    after = builder.build(a_plan(topology, health=down, weights={"chat-primary-0": 100}))
    assert after is before


def test_the_reason_of_a_tier_that_gets_nothing_causes_no_push():
    topology = a_topology()
    builder = build(topology)
    before = builder.build(a_plan(topology, rules=["fits"]))
    assert builder.build(a_plan(topology, rules=["kv_pressure"])) is before


def test_a_tier_that_still_waits_for_agents_is_an_empty_assignment():
    model = a_model(tiers=[a_tier("primary", "llama-3-70b", []), a_static_tier()])
    topology = a_topology(model)
    snapshot = build(topology).build(a_plan(topology))
    assert assignment(snapshot).cluster_name == "chat/primary"
    assert list(assignment(snapshot).endpoints) == []


def test_grpc_clients_get_plain_clusters_and_no_static_tier():
    topology = a_topology(a_model(domains=["chat.example", "*.internal"]))
    snapshot = build(topology, Capability.GRPC).build(a_plan(topology, [0, 0, 1000]))
    assert set(snapshot.of_type(served.CLUSTER).resources) == {"chat/primary", "chat/fallback"}
    assert set(snapshot.of_type(served.LISTENER).resources) == {"llm", "chat.example"}
    assert weights_of(snapshot) == {"chat/primary": 1000, "chat/fallback": 0}


def test_grpc_clients_get_no_route_to_a_model_that_is_only_static():
    topology = a_topology(a_model(tiers=[a_static_tier()]))
    snapshot = build(topology, Capability.GRPC).build(a_plan(topology))
    table = RouteConfiguration.FromString(snapshot.of_type(served.ROUTE).resources["llm"].body)
    assert list(table.virtual_hosts) == []


def test_a_model_that_is_only_static_has_one_member_and_no_retries():
    topology = a_topology(a_model(tiers=[a_static_tier()]))
    snapshot = build(topology).build(a_plan(topology))
    assert weights_of(snapshot) == {"chat/static": 1000}
    table = RouteConfiguration.FromString(snapshot.of_type(served.ROUTE).resources["llm"].body)
    retries = table.virtual_hosts[0].routes[0].route.retry_policy.num_retries
    assert retries.value == 0


def test_a_route_needs_the_clusters_that_it_names():
    topology = a_topology()
    route = build(topology).build(a_plan(topology)).of_type(served.ROUTE).resources["llm"]
    chains = {"chat/primary/chain", "chat/fallback/chain", "chat/static"}
    assert route.needs == chains | {"chat/primary"}, "the strict route leads to the tier itself"


def test_without_the_last_net_nothing_of_it_is_served():
    topology = a_topology()
    policy = Policy(failures=FailurePolicy(static_on_5xx=False))
    snapshot = build(topology, policy=policy).build(a_plan(topology))
    assert b"custom_response" not in snapshot.of_type(served.LISTENER).resources["llm"].body
    assert b"x-model-route" not in snapshot.of_type(served.ROUTE).resources["llm"].body


def _other_tiers(plan):
    model = plan.models[0]
    return replace(plan, models=(replace(model, tiers=model.tiers[:-1]),))


def _instances(plan, change):
    model = plan.models[0]
    tier = replace(model.tiers[0], instances=change(model.tiers[0].instances))
    return replace(plan, models=(replace(model, tiers=(tier, *model.tiers[1:])),))


def _other_instance(plan):
    # Moves the first instance before it stumbles over the second.
    return _instances(
        plan, lambda both: (replace(both[0], weight=7), replace(both[1], id="stranger"))
    )


def _fewer_instances(plan):
    return _instances(plan, lambda both: (replace(both[0], weight=7),))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda plan: replace(plan, models=()), "without models.*chat"),
        (
            lambda plan: replace(plan, models=(replace(plan.models[0], name="other"),)),
            "unknown model other",
        ),
        (_other_tiers, "chat.*primary.*fallback"),
        (_other_instance, "chat/primary.*unknown instance.*stranger"),
        (_fewer_instances, "chat/primary.*no word on.*chat-primary-1"),
    ],
    ids=["no model", "another model", "other tiers", "another instance", "fewer instances"],
)
def test_a_plan_of_another_topology_is_refused_by_name_and_leaves_no_trace(spoil, complaint):
    topology = a_topology()
    builder = build(topology)
    good = a_plan(topology, [1, 2, 3])
    with pytest.raises(PlanMismatchError, match=complaint):
        builder.build(spoil(good))
    before = builder.build(good)
    with pytest.raises(PlanMismatchError, match=complaint):
        builder.build(spoil(good))
    assert bodies(builder.build(good)) == bodies(before)
    assert bodies(before) == bodies(build(topology).build(good))
