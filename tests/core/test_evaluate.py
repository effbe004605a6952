from __future__ import annotations

import pytest

from tests.fakes.brain import Brain, model, sample, small_fleet, step, tier, topology
from xds_server.core.evaluate import initial_state, retarget
from xds_server.core.model import InstanceId, Tier, TierName
from xds_server.core.plan import EndpointHealth, FaultState, Freshness, Level
from xds_server.core.policy import Policy, WeightPolicy
from xds_server.core.sample import EngineState

ALL = ("a", "b", "c", "f")
POLICY = Policy()


def test_the_first_plan_is_the_static_one():
    state = initial_state(small_fleet(), POLICY, 0.0)
    _, plan = step(state, [], POLICY, 0.0)
    primary, fallback, static = plan.models[0].tiers
    assert [t.weight for t in plan.models[0].tiers] == [1000, 0, 0]
    assert [i.weight for i in primary.instances] == [1000, 1000, 1000]
    assert [i.weight for i in fallback.instances] == [1000]
    assert static.instances == ()
    assert {i.freshness for i in primary.instances} == {Freshness.BLIND}
    assert plan.events == ()


def test_weights_follow_capacity():
    brain = Brain(
        topology(model("chat", tier("primary", "a", "b", "c", "d", capacities=[40, 40, 40, 20])))
    )
    brain.run("abcd", until=3.0)
    assert brain.weights() == {"a": 1143, "b": 1143, "c": 1143, "d": 571}


def test_a_busier_instance_gets_less_and_the_others_more():
    brain = Brain(small_fleet())
    brain.feed(
        sample("a", 1.0, kv_ratio=0.7), sample("b", 1.0, kv_ratio=0.4), sample("c", 1.0), at=1.0
    )
    assert brain.weights() == {"a": 800, "b": 1100, "c": 1100}
    assert [i.reason.rule for i in brain.tier().instances] == [
        "load_above_mean",
        "load_below_mean",
        "load_below_mean",
    ]
    assert brain.instance("a").reason.inputs["pressure"] == 0.7


def test_an_instance_of_unknown_load_gets_the_weight_of_its_capacity():
    brain = Brain(small_fleet())
    for at in (1.0, 2.0):
        brain.feed(
            sample("a", at, kv_ratio=None, running=None),
            sample("b", at, kv_ratio=0.7),
            sample("c", at, kv_ratio=0.3),
            at=at,
        )
    assert brain.weights() == {"a": 1000, "b": 800, "c": 1200}
    assert brain.instance("a").reason.rule == "load_unknown"


def test_a_change_below_the_threshold_keeps_the_published_objects():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    before = brain.plan
    brain.feed(sample("a", 6.0, kv_ratio=0.41), *[sample(n, 6.0) for n in "bcf"], at=6.0)
    assert brain.plan.models is before.models
    assert brain.state.instance(InstanceId("a")).pressure == 0.41


def test_small_moves_add_up_until_they_are_published():
    brain = Brain(small_fleet())
    for turn in range(10):
        at = 1.0 + turn
        brain.feed(
            sample("a", at, kv_ratio=0.4 + 0.01 * turn),
            *[sample(n, at) for n in "bcf"],
            at=at,
        )
    assert brain.weights()["a"] < 970


def test_news_that_moves_no_weight_moves_no_weight_of_others():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    brain.feed(sample("a", 5.5, kv_ratio=0.42), at=5.5)
    before = brain.weights()
    brain.until(8.2)
    assert brain.instance("b").freshness is Freshness.HOLD
    assert brain.weights() == before


def test_unknown_instances_are_ignored_whatever_they_send():
    brain = Brain(small_fleet())
    before = brain.plan
    brain.feed(sample("ghost", 1.0, state=EngineState.DOWN), at=1.0)
    brain.drain("ghost")
    assert brain.plan.models is before.models
    assert brain.state.instance(InstanceId("ghost")) is None


def test_a_model_no_sample_arrived_for_is_not_touched():
    fleet = topology(model("one", tier("p", "a")), model("two", tier("p", "b")))
    brain = Brain(fleet)
    brain.feed(sample("a", 1.0), sample("b", 1.0), at=1.0)
    other = brain.state.models[1]
    brain.feed(sample("a", 2.0, state=EngineState.DOWN), at=2.0)
    assert brain.state.models[1] is other
    assert brain.plan.models[1] is other.plan
    assert brain.model("one").tiers[0].weight == 0


def test_a_sample_that_is_no_news_costs_nothing():
    brain = Brain(small_fleet())
    one = sample("a", 1.0)
    brain.feed(one, at=1.0)
    state, plan = brain.state, brain.plan
    for again in (one, sample("a", 1.0), sample("a", 0.5, state=EngineState.DOWN)):
        brain.feed(again, at=1.0)
        assert brain.state.models is not None
        assert brain.state.models == state.models
        assert brain.plan.models is plan.models


def test_several_samples_of_one_instance_count_one_by_one():
    brain = Brain(small_fleet())
    brain.feed(sample("a", 0.1), sample("a", 0.2, state=EngineState.DOWN), sample("a", 0.3), at=0.3)
    assert brain.instance("a").state is FaultState.RECOVERING


def test_a_sample_that_was_stale_on_arrival_is_a_last_word_but_no_evidence():
    brain = Brain(small_fleet())
    brain.run(ALL, until=100.0)
    brain.feed(sample("a", 100.5, state=EngineState.DOWN), at=110.0)
    assert (brain.instance("a").state, brain.instance("a").freshness) == (
        FaultState.DOWN,
        Freshness.HOLD,
    )
    brain.feed(sample("a", 101.0), at=110.0)
    assert brain.instance("a").state is FaultState.DOWN
    brain.feed(sample("b", 101.0, draining=True), at=110.0)
    assert brain.instance("b").state is FaultState.DRAINING
    brain.feed(sample("c", 101.0, kv_ratio=0.9), at=140.0)
    assert brain.instance("c").freshness is Freshness.BLIND
    assert brain.instance("c").pressure is None


def test_a_drain_and_its_end_are_events_with_who_and_why():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    brain.drain("a", who="ann", why="new driver")
    assert brain.instance("a").health is EndpointHealth.DRAINING
    assert brain.instance("a").reason.text == (
        "No new requests, running ones may finish: an operator drains it (ann: new driver)."
    )
    brain.drain("a", who="ann", why="new driver")
    brain.drain("a", draining=False)
    assert [(e.name, e.before, e.after) for _, e in brain.events if e.instance == "a"][1:] == [
        ("instance_draining", "healthy", "draining"),
        ("instance_recovering", "draining", "recovering/0"),
    ]


def test_the_reason_of_a_drain_names_who_wants_it_now():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    brain.drain("a", who="ann", why="new driver")
    brain.drain("a", who="bob", why="disk")
    assert "an operator drains it (bob: disk)" in brain.instance("a").reason.text
    brain.run(ALL, until=7.0, draining=True)
    brain.drain("a", draining=False)
    assert brain.instance("a").health is EndpointHealth.DRAINING
    assert brain.instance("a").reason.rule == "agent_drain"


def test_a_model_without_a_static_tier_still_has_a_route():
    lone = tier("primary", "a")
    brain = Brain(topology(type(small_fleet().models[0])(name="chat", tiers=(lone,))))
    brain.feed(sample("a", 1.0, state=EngineState.DOWN), at=1.0)
    assert [t.weight for t in brain.model().tiers] == [1000]
    assert brain.tier().reason.rule == "no_capacity"


def test_a_tier_that_discovers_its_instances_starts_empty():
    empty = Tier(name=TierName("primary"), serves="m", discovers=True)
    brain = Brain(topology(model("chat", empty)))
    assert [t.weight for t in brain.model().tiers] == [0, 1000]
    assert brain.tier().level is Level.CRITICAL
    brain.retarget(topology(model("chat", tier("primary", "a"))))
    assert [t.weight for t in brain.model().tiers] == [1000, 0], "silence halts no tier"
    assert brain.named("level_changed")[-1][1].after == "healthy"


def test_a_fleet_without_models_is_quiet():
    brain = Brain(topology())
    assert brain.plan.models == ()
    assert brain.plan.next_deadline is None


def test_retargeting_to_the_same_fleet_keeps_every_plan():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    brain.feed(sample("a", 6.0, state=EngineState.DOWN), *[sample(n, 6.0) for n in "bcf"], at=6.0)
    before = brain.plan
    brain.retarget(small_fleet())
    assert brain.plan.models == before.models
    assert brain.plan.models[0] is before.models[0]
    assert brain.plan.events == ()


def test_retargeting_keeps_faults_and_learned_values_across_tiers():
    brain = Brain(small_fleet())
    brain.run(ALL, until=60.0)
    brain.feed(sample("a", 61.0, state=EngineState.DOWN), at=61.0)
    brain.retarget(
        topology(
            model("chat", tier("primary", "b", "c"), tier("spare", "a"), tier("fallback", "f"))
        )
    )
    assert brain.instance("a").state is FaultState.DOWN
    assert brain.instance("b").state is FaultState.HEALTHY
    assert brain.named("instance_left") == brain.named("instance_joined") == []


def test_retargeting_reports_who_left():
    brain = Brain(small_fleet())
    brain.run(ALL, until=60.0)
    brain.retarget(topology(model("chat", tier("primary", "a", "b"), tier("fallback", "f"))))
    assert [e.instance for _, e in brain.named("instance_left")] == ["c"]
    assert len(brain.tier().instances) == 2


def test_events_of_a_retarget_are_reported_once():
    brain = Brain(small_fleet())
    state = retarget(brain.state, topology(), POLICY, 1.0)
    state = retarget(state, topology(model("chat", tier("primary", "z"))), POLICY, 2.0)
    state, plan = step(state, [], POLICY, 2.0)
    assert [e.name for e in plan.events].count("instance_joined") == 1
    assert [e.name for e in plan.events].count("instance_left") == 4
    assert step(state, [], POLICY, 2.0)[1].events == ()


def test_a_configured_capacity_replaces_a_learned_one_and_the_other_way_round():
    def fleet(capacity):
        return topology(model("chat", tier("primary", "a", capacity=capacity)))

    brain = Brain(fleet(None))
    brain.run("a", until=2.0, running=50.0, waiting=2.0)
    a = InstanceId("a")
    assert brain.state.instance(a).slots == 50.0
    brain.retarget(fleet(10.0))
    assert brain.state.instance(a).slots == 10.0
    brain.retarget(fleet(None))
    assert brain.state.instance(a).slots is None


def test_a_policy_with_a_large_trickle_keeps_it():
    brain = Brain(small_fleet(), Policy(weights=WeightPolicy(trickle_ratio=0.5)))
    brain.feed(
        sample("a", 1.0, kv_ratio=1.0, waiting=99.0),
        *[sample(n, 1.0, kv_ratio=0.0) for n in "bcf"],
        at=1.0,
    )
    assert brain.weights()["a"] == 500


@pytest.mark.parametrize("names", [ALL, ALL[::-1]], ids=["forward", "backward"])
def test_the_order_of_samples_does_not_matter(names):
    brain = Brain(small_fleet())
    brain.feed(*[sample(n, 1.0, kv_ratio=0.1 * ord(n) % 1.0) for n in names], at=1.0)
    expected = Brain(small_fleet())
    expected.feed(*[sample(n, 1.0, kv_ratio=0.1 * ord(n) % 1.0) for n in sorted(names)], at=1.0)
    assert brain.plan == expected.plan


def test_a_loop_that_slept_too_long_catches_up_with_whatever_arrives():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    state, plan = step(brain.state, [sample("a", 1.0)], POLICY, 200.0)
    assert {i.freshness for i in plan.models[0].tiers[0].instances} == {Freshness.BLIND}
    assert plan.next_deadline > 200.0
    assert state.instance(InstanceId("a")).sample.observed_at == 5.0


def test_retargeting_neither_slows_nor_hastens_a_correction():
    brain = Brain(small_fleet())
    for at in range(1, 10):
        brain.feed(
            sample("a", float(at), kv_ratio=0.8),
            *[sample(n, float(at), kv_ratio=0.2) for n in "bcf"],
            at=float(at),
        )
    brain.retarget(small_fleet())
    brain.feed(*[sample(n, 10.0, kv_ratio=0.2) for n in ALL], at=10.0)
    assert brain.weights()["a"] == 1000, "its telemetry was never lost"
    brain.run(("b", "c", "f"), until=14.0, kv_ratio=0.8)
    brain.feed(*[sample(n, 15.0, kv_ratio=0.8 if n == "a" else 0.2) for n in ALL], at=15.0)
    brain.retarget(small_fleet())
    brain.feed(*[sample(n, 16.0, kv_ratio=0.8 if n == "a" else 0.2) for n in ALL], at=16.0)
    assert brain.weights()["a"] == 1350, "it was lost and eases from 1.4 toward 0.6"


def test_numbers_for_people_are_renewed_without_moving_a_weight():
    brain = Brain(small_fleet())
    brain.run(ALL, until=60.0)
    before, weights = brain.plan, brain.weights()
    finished = dict.fromkeys(ALL, 120.0)
    for at in range(61, 120):
        for name in finished:
            finished[name] += 3.0
        brain.feed(
            *[sample(n, float(at), kv_ratio=0.6, finished_total=finished[n]) for n in ALL],
            at=float(at),
        )
    assert brain.plan.models[0] is not before.models[0]
    assert brain.tier().pressure == pytest.approx(0.6)
    assert brain.instance("a").pressure == pytest.approx(0.6)
    assert brain.tier().demand == pytest.approx(12.0, rel=0.3)
    assert brain.tier().demand > before.models[0].tiers[0].demand * 1.2
    assert brain.weights() == weights
