from __future__ import annotations

import copy
import json

import pytest

from tests.fakes.brain import GIB, Brain, gpu, model, sample, small_fleet, step, tier, topology
from xds_server.core.model import InstanceId
from xds_server.core.persist import dump, restore
from xds_server.core.plan import FaultState, Level
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineState, GpuHealth

ALL = ("a", "b", "c", "f")
POLICY = Policy()


def troubled() -> Brain:
    """A fleet with one instance on its second stage, one drained, and a weight off its capacity."""
    brain = Brain(small_fleet(), now=5000.0)
    brain.run(ALL, until=5010.0)
    brain.feed(sample("a", 5011.0, state=EngineState.DOWN, detail="exit 1"), at=5011.0)
    brain.drain("b", who="ann", why="new driver")
    for at in range(5012, 5060):
        brain.feed(
            *[sample(n, float(at), kv_ratio={"c": 0.6}.get(n, 0.3)) for n in ALL], at=float(at)
        )
    return brain


def kept(brain: Brain):
    return json.loads(json.dumps(dump(brain.state, brain.plan, brain.now)))


def test_a_restarted_control_plane_says_what_it_said_before():
    brain = troubled()
    state = restore(small_fleet(), POLICY, kept(brain), 3.0)
    _, plan = step(state, [], POLICY, 3.0)
    for old, new in zip(brain.model().tiers, plan.models[0].tiers, strict=True):
        assert (new.weight, new.level) == (old.weight, old.level)
        assert [(i.id, i.weight, i.health, i.ceiling) for i in new.instances] == [
            (i.id, i.weight, i.health, i.ceiling) for i in old.instances
        ]
    assert plan.events == ()


def test_holds_go_on_where_they_stopped():
    brain = troubled()
    track = brain.state.instance(InstanceId("a")).track
    left_s = track.due_at - brain.now
    restored = restore(small_fleet(), POLICY, kept(brain), 3.0)
    again = restored.instance(InstanceId("a")).track
    assert (again.state, again.stage, again.due_at) == (FaultState.RECOVERING, 1, None)
    assert again.left_s == pytest.approx(left_s)
    restored, _ = step(restored, [sample("a", 4.0)], POLICY, 4.0)
    assert restored.instance(InstanceId("a")).track.due_at == pytest.approx(4.0 + left_s)


def test_drains_and_causes_are_kept():
    restored = restore(small_fleet(), POLICY, kept(troubled()), 3.0)
    track = restored.instance(InstanceId("b")).track
    assert (track.state, track.operator) == (FaultState.DRAINING, "ann: new driver")
    assert restored.instance(InstanceId("a")).track.cause == "engine_down"


def test_a_quarantine_runs_on_by_itself():
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    brain.feed(sample("a", 6.0, restarts=3), at=6.0)
    restored = restore(small_fleet(), POLICY, kept(brain), 100.0)
    track = restored.instance(InstanceId("a")).track
    assert (track.state, track.due_at) == (FaultState.QUARANTINED, 400.0)
    assert track.faults == (100.0, 100.0, 100.0)


def test_a_restart_during_the_absence_is_noticed():
    restored = restore(small_fleet(), POLICY, kept(troubled()), 3.0)
    restored, _ = step(restored, [sample("c", 4.0, restarts=1)], POLICY, 4.0)
    assert restored.instance(InstanceId("c")).track.state is FaultState.WARMING


def test_weights_are_frozen_until_telemetry_is_back_and_then_ease():
    brain = troubled()
    state = restore(small_fleet(), POLICY, kept(brain), 3.0)
    weight = brain.instance("c").weight
    state, plan = step(state, [], POLICY, 20.0)
    assert plan.models[0].tiers[0].instances[2].weight == weight
    for at in range(21, 60):
        news = [sample(n, float(at), kv_ratio=0.3) for n in ALL]
        state, plan = step(state, news, POLICY, float(at))
        now = plan.models[0].tiers[0].instances[2].weight
        assert abs(now - weight) <= 75
        weight = now


def test_vram_throttling_levels_and_learned_slots_are_kept():
    fleet = topology(model("chat", tier("primary", "a", capacity=None)))
    brain = Brain(fleet)
    for at in range(1, 40):
        brain.feed(
            sample(
                "a",
                float(at),
                running=64.0,
                waiting=30.0,
                kv_ratio=0.9,
                gpu=gpu(GpuHealth.THROTTLED, ratio=0.93, free=GIB // 8),
            ),
            at=float(at),
        )
    assert brain.tier().level is Level.CRITICAL
    restored = restore(fleet, POLICY, kept(brain), 3.0)
    again = restored.instance(InstanceId("a"))
    assert (again.ceiling, again.slots, again.vram.least) == (0.25, 64.0, 0.93)
    assert restored.plans[0].tiers[0].level is Level.CRITICAL
    # Nobody reads its GPU any more: what it said last is forgotten in the end.
    later, plan = step(restored, [], POLICY, 4.0)
    later, plan = step(later, [], POLICY, 4.0 + POLICY.telemetry.blind_after_s)
    assert later.instance(InstanceId("a")).ceiling == 1.0
    assert {each.name for each in plan.events} >= {"vram_cleared", "gpu_unthrottled"}


def test_dumping_what_was_restored_gives_the_same_document():
    document = kept(troubled())
    state = restore(small_fleet(), POLICY, document, 3.0)
    again = json.loads(json.dumps(dump(state, None, 3.0)))
    for name, tier_again in again["models"]["chat"]["tiers"].items():
        before = document["models"]["chat"]["tiers"][name]
        assert tier_again["instances"] == before["instances"]
        assert tier_again["spill"] == before["spill"]


def test_what_is_new_starts_healthy_and_what_is_gone_is_dropped():
    document = kept(troubled())
    fleet = topology(
        model("chat", tier("primary", "a", "z"), tier("fallback", "f", capacity=20.0)),
        model("other", tier("primary", "x")),
    )
    state = restore(fleet, POLICY, document, 3.0)
    _, plan = step(state, [], POLICY, 3.0)
    assert [i.id for i in plan.models[0].tiers[0].instances] == ["a", "z"]
    assert state.instance(InstanceId("z")).track.state is FaultState.HEALTHY
    assert [t.weight for t in plan.models[1].tiers] == [1000, 0]


def test_a_changed_chain_keeps_its_instances_but_not_its_spill():
    document = kept(troubled())
    fleet = topology(model("chat", tier("primary", "a", "b", "c"), tier("second", "q")))
    state = restore(fleet, POLICY, document, 3.0)
    assert state.instance(InstanceId("a")).track.state is FaultState.RECOVERING
    assert sum(t.weight for t in state.plans[0].tiers) == 1000


def test_an_instance_at_another_address_is_not_the_kept_one():
    document = kept(troubled())
    document["models"]["chat"]["tiers"]["primary"]["instances"]["a"]["port"] += 1
    state = restore(small_fleet(), POLICY, document, 3.0)
    assert state.instance(InstanceId("a")).track.state is FaultState.HEALTHY


def test_an_operators_drain_goes_on_though_the_address_changed_while_the_server_was_away():
    document = kept(troubled())
    instances = document["models"]["chat"]["tiers"]["primary"]["instances"]
    instances["b"]["port"] += 1
    instances["c"]["port"] += 1
    state = restore(small_fleet(), POLICY, document, 3.0)
    track = state.instance(InstanceId("b")).track
    assert (track.state, track.operator) == (FaultState.DRAINING, "ann: new driver")
    assert state.instance(InstanceId("c")).track.state is FaultState.HEALTHY


def test_a_plan_from_before_a_change_of_topology_does_not_spoil_the_document():
    brain = troubled()
    plan = brain.plan
    brain.retarget(
        topology(
            model("chat", tier("primary", "a", "b", "c"), tier("second", "q")),
            model("new", tier("primary", "x")),
        )
    )
    document = dump(brain.state, plan, brain.now)
    assert list(document["models"]) == ["chat", "new"]
    assert list(document["models"]["chat"]["tiers"]) == ["primary", "second", "static"]
    restored = restore(brain.state.topology, POLICY, document, 3.0)
    assert restored.instance(InstanceId("a")).track.state is FaultState.RECOVERING


def change(document, path, value):
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is KeyError:
        del document[last]
    else:
        document[last] = value


TIER = ("models", "chat", "tiers", "primary")
INSTANCE = (*TIER, "instances", "a")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 2, "state.version: 2; expected 1"),
        (("version",), "1", "state.version: '1'; expected an integer of at least 0"),
        (("version",), True, "state.version: True; expected an integer"),
        (("version",), KeyError, "state.version: missing"),
        (("models",), [], r"state.models: \[\]; expected a mapping"),
        ((*TIER, "level"), "angry", "level: 'angry'; expected one of healthy, degraded, critical"),
        ((*TIER, "level"), 3, "level: 3; expected one of"),
        ((*TIER, "share"), 1.5, "share: 1.5; expected a finite number from 0.0 to 1.0"),
        ((*TIER, "share"), float("nan"), "share: nan; expected a finite number"),
        ((*TIER, "share"), True, "share: True; expected a number"),
        ((*TIER, "frozen_age_s"), -1.0, "frozen_age_s: -1.0; expected a finite number"),
        ((*TIER, "is_known"), 1, "is_known: 1; expected true or false"),
        ((*INSTANCE, "state"), "lost", "instances.a.state: 'lost'; expected one of healthy"),
        ((*INSTANCE, "stage"), -2, "stage: -2; expected an integer of at least -1"),
        ((*INSTANCE, "cause"), None, "cause: None; expected a string"),
        ((*INSTANCE, "operator"), 5, "operator: 5; expected a string"),
        ((*INSTANCE, "fault_ages_s"), {}, "fault_ages_s: {}; expected a list"),
        ((*INSTANCE, "fault_ages_s"), [1.0, "x"], r"fault_ages_s\[1\]: 'x'; expected a number"),
        ((*INSTANCE, "restarts"), 0.5, "restarts: 0.5; expected an integer"),
        ((*INSTANCE, "weight"), 0, "weight: 0; expected an integer of at least 1"),
    ],
)
def test_garbage_is_refused_with_its_path(path, value, said):
    document = copy.deepcopy(kept(troubled()))
    change(document, path, value)
    with pytest.raises(ValueError, match=said):
        restore(small_fleet(), POLICY, document, 3.0)


@pytest.mark.parametrize("garbage", [None, [], "x", 5], ids=repr)
def test_what_is_no_document_is_refused(garbage):
    with pytest.raises(ValueError, match=r"state: .*expected a mapping"):
        restore(small_fleet(), POLICY, garbage, 3.0)
