"""Timelines on a manual clock: what the brain does, sample by sample, in the incidents it exists for.

Numbers in names like "routing 6" are the scenarios of the routing research: bugs that other routers had.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.fakes.brain import (
    ALL,
    Brain,
    gpu,
    instance,
    model,
    sample,
    small_fleet,
    tier,
    topology,
    warm,
)
from xds_server.core.plan import EndpointHealth, FaultState, Freshness, Level
from xds_server.core.policy import Policy, RecoveryPolicy
from xds_server.core.sample import EngineState, GpuHealth

TRACE = Path(__file__).parents[1] / "data" / "engines" / "vllm-0.32.0-trace.csv"


def test_one_of_three_runs_out_of_memory_reloads_and_returns_in_stages():
    brain = warm()
    brain.feed(sample("a", 10.4, state=EngineState.DOWN, out_of_memory=True), at=10.4)
    out = brain.instance("a")
    assert (out.ceiling, out.health) == (0.0, EndpointHealth.UNHEALTHY)
    assert (out.reason.rule, out.state) == ("out_of_memory", FaultState.DOWN)
    assert brain.weights() == {"a": 1, "b": 1000, "c": 1000}
    for at in range(11, 94):
        brain.feed(
            *[sample(n, float(at)) for n in "bcf"],
            sample("a", float(at), state=EngineState.LOADING, kv_ratio=None, running=None),
            at=float(at),
        )
        assert brain.instance("a").ceiling == 0.0
    ceilings = []
    for at in range(94, 194):
        brain.feed(*[sample(n, float(at), restarts=int(n == "a")) for n in ALL], at=float(at))
        ceilings.append(brain.instance("a").ceiling)
    assert sorted(set(ceilings)) == [0.10, 0.30, 1.0]
    assert ceilings == sorted(ceilings)
    assert ceilings.index(1.0) <= 90
    assert brain.instance("a").state is FaultState.HEALTHY
    assert [e.name for _, e in brain.events if e.instance == "a"][1:] == [
        "instance_down",
        "instance_recovering",
        "instance_stage_advanced",
        "instance_stage_advanced",
        "instance_healthy",
    ]


def test_a_blackout_of_all_telemetry_freezes_then_turns_static_and_nothing_jumps_after():
    brain = warm(names=("b", "c", "f"), until=0.0)
    for at in range(1, 31):
        brain.feed(
            sample("a", float(at), kv_ratio=0.7),
            *[sample(n, float(at), kv_ratio=0.3) for n in "bcf"],
            at=float(at),
        )
    before = brain.weights()
    assert (before["a"], before["b"]) == (733, 1133)
    brain.until(33.0)
    assert {i.freshness for i in brain.tier().instances} == {Freshness.HOLD}
    assert brain.weights() == before
    brain.until(60.0)
    assert {i.freshness for i in brain.tier().instances} == {Freshness.BLIND}
    assert brain.named("tier_frozen")[-1][1].reason.rule == "tier_frozen"
    brain.until(89.9)
    assert brain.weights() == before
    brain.until(150.0)
    assert brain.weights() == pytest.approx({"a": 1000, "b": 1000, "c": 1000}, rel=0.02)
    assert brain.tier().weight == 1000
    for at in range(151, 200):
        was = brain.weights()
        brain.feed(
            sample("a", float(at), kv_ratio=0.7),
            *[sample(n, float(at), kv_ratio=0.3) for n in "bcf"],
            at=float(at),
        )
        moves = [abs(brain.weights()[n] - was[n]) for n in "abc"]
        assert max(moves) <= 75, "an easing correction moves at most 5 % of the capacity per second"
    assert brain.weights() == pytest.approx(before, rel=0.02)
    for _, plan in brain.plans:
        tiers = plan.models[0].tiers
        assert sum(t.weight for t in tiers) == 1000
        assert all(i.health is EndpointHealth.HEALTHY for t in tiers for i in t.instances)


@pytest.mark.parametrize("capacity", [8.0, None], ids=["configured", "learned"])
def test_a_recorded_overload_moves_the_level_once_up_and_once_down(capacity):
    brain = Brain(topology(model("chat", tier("primary", "a", capacity=capacity))))
    with TRACE.open(newline="") as file:
        for row in csv.DictReader(file):
            at = float(row["t"])
            facts = {
                "running": float(row["num_requests_running"]),
                "waiting": float(row["num_requests_waiting"]),
                "kv_ratio": float(row["kv_cache_usage_perc"]),
                "finished_total": float(row["request_success_total"]),
            }
            brain.feed(sample("a", at, **facts), at=at)
    changes = [(e.before, e.after) for _, e in brain.named("level_changed") if e.tier == "primary"]
    assert changes == [("healthy", "critical"), ("critical", "healthy")]


def test_a_missing_series_of_a_full_engine_never_raises_its_weight():
    """Routing 1 and 5: a series that vanishes for a scrape is not an idle engine."""
    brain = warm()
    for at in range(11, 20):
        full = {"kv_ratio": None if at == 15 else 0.97, "waiting": 6.0}
        brain.feed(
            sample("a", float(at), **full),
            *[sample(n, float(at), kv_ratio=0.06) for n in "bcf"],
            at=float(at),
        )
        assert brain.weights()["a"] < 700
    raised = [plan.models[0].tiers[0].instances[0].weight for _, plan in brain.plans[-8:]]
    assert max(raised) == min(raised)


def test_agents_that_all_fail_are_not_an_idle_fleet():
    """Routing 2: no scrape succeeds any more: last weights, an event, and no tier is halted."""
    brain = warm()
    before = brain.weights()
    brain.until(13.0)
    assert brain.weights() == before
    assert len(brain.named("telemetry_stale")) == 4
    assert [i.reason.rule for i in brain.tier().instances] == ["telemetry_hold"] * 3
    brain.until(2000.0)
    assert brain.tier().weight == 1000
    assert {i.health for i in brain.tier().instances} == {EndpointHealth.HEALTHY}


def test_a_dead_engine_is_last_and_not_first():
    """Routing 4: an engine without numbers must not look like the emptiest one."""
    brain = warm()
    nothing = {"kv_ratio": None, "waiting": None, "running": None, "finished_total": None}
    for at in range(11, 60):
        brain.feed(
            sample("a", float(at), state=EngineState.DOWN, **nothing),
            *[sample(n, float(at)) for n in "bcf"],
            at=float(at),
        )
        assert brain.instance("a").health is EndpointHealth.UNHEALTHY
    assert brain.weights() == {"a": 1, "b": 1000, "c": 1000}


def test_a_dead_host_takes_its_agent_along_and_stays_out():
    brain = warm()
    brain.feed(sample("a", 11.0, gpu=gpu(GpuHealth.LOST)), at=11.0)
    brain.run(("b", "c", "f"), until=600.0)
    assert brain.instance("a").health is EndpointHealth.UNHEALTHY
    brain.run(("b", "c", "f"), until=700.0)
    trial = brain.instance("a")
    assert (trial.ceiling, trial.reason.rule) == (0.10, "silent_trial")
    brain.run(("b", "c", "f"), until=1200.0)
    assert brain.instance("a").ceiling == 0.10


def test_a_gauge_that_stays_full_without_traffic_keeps_its_trickle():
    """Routing 6: after a mass abort a vLLM reports 99 % until it works again: it must get work."""
    brain = warm()
    for at in range(11, 630):
        brain.feed(
            sample("a", float(at), kv_ratio=0.99, running=0.0),
            *[sample(n, float(at), kv_ratio=0.1) for n in "bcf"],
            at=float(at),
        )
    assert brain.instance("a").health is EndpointHealth.HEALTHY
    assert brain.weights()["a"] >= 300
    brain.feed(
        *[sample(n, 630.0, kv_ratio=0.1) for n in ALL],
        at=630.0,
    )
    assert brain.weights() == {"a": 1000, "b": 1000, "c": 1000}


def test_two_agents_of_one_instance_cannot_overwrite_newer_news():
    """Routing 8: what counts is when a number was true, not when it arrived."""
    brain = warm()
    brain.feed(sample("a", 11.0, kv_ratio=0.9), at=11.0)
    weights = brain.weights()
    brain.feed(sample("a", 10.5, kv_ratio=0.0), at=11.1)
    assert brain.weights() == weights


def test_a_burst_never_goes_to_the_emptiest_alone():
    """Routing 12: whatever the gauges say, no instance gets more than 1.5 times its capacity."""
    brain = warm()
    brain.feed(
        sample("a", 11.0, kv_ratio=0.0),
        *[sample(n, 11.0, kv_ratio=1.0, waiting=99.0) for n in "bcf"],
        at=11.0,
    )
    weights = brain.weights()
    assert weights["a"] / sum(weights.values()) <= 1.5 / (1.5 + 2 * 0.3)
    assert weights["a"] == 1500


def test_a_new_instance_gets_its_ramp_and_not_everything():
    """Routing 13: scaling from 3 to 4: the newcomer is empty, cold and slow."""
    brain = warm(until=60.0)
    brain.retarget(
        topology(
            model("chat", tier("primary", "a", "b", "c", "d"), tier("fallback", "f", capacity=20.0))
        )
    )
    ceilings = []
    for at in range(61, 180):
        brain.feed(
            *[sample(n, float(at), kv_ratio=0.6) for n in "abcf"],
            sample("d", float(at), kv_ratio=0.0),
            at=float(at),
        )
        share = brain.weights()["d"] / sum(brain.weights().values())
        ceilings.append(brain.instance("d").ceiling)
        assert share <= 1.5 * ceilings[-1] / (1.5 * ceilings[-1] + 3 * 0.8)
    assert sorted(set(ceilings)) == [0.10, 0.30, 1.0]
    assert brain.instance("d").state is FaultState.HEALTHY


def test_an_instance_that_may_take_nothing_does_not_move_the_mean():
    """Routing 16: a drained instance idles at zero; the others must not look overloaded."""
    brain = warm()
    before = brain.weights()
    brain.drain("a")
    for at in range(11, 30):
        brain.feed(
            sample("a", float(at), kv_ratio=0.0),
            *[sample(n, float(at)) for n in "bcf"],
            at=float(at),
        )
    assert {n: brain.weights()[n] for n in "bc"} == {n: before[n] for n in "bc"}
    assert brain.tier().pressure == pytest.approx(0.4)


def test_instances_that_fail_together_do_not_return_together():
    """Routing 32: every stage of every instance ends at another moment."""
    brain = warm()
    brain.feed(*[sample(n, 11.0, state=EngineState.DOWN) for n in "abc"], at=11.0)
    assert next(t.weight for t in brain.model().tiers) == 0
    at = 11.0
    while at < 150.0:
        at += 0.1
        brain.feed(*[sample(n, at) for n in ALL], at=at)
    for name in ("instance_stage_advanced", "instance_healthy"):
        times = [at for at, e in brain.named(name) if e.instance in ("a", "b", "c")]
        assert len(times) == len(set(times)) == (6 if name.endswith("advanced") else 3)


def test_a_model_that_can_serve_nothing_answers_statically():
    """Routing 11: an empty pool is no load: everything goes to the static tier, with a reason."""
    brain = warm()
    brain.feed(*[sample(n, 11.0, state=EngineState.DOWN) for n in ALL], at=11.0)
    assert [t.weight for t in brain.model().tiers] == [0, 0, 1000]
    assert [t.reason.rule for t in brain.model().tiers][:2] == ["no_capacity"] * 2
    assert [t.level for t in brain.model().tiers] == [Level.CRITICAL, Level.CRITICAL, Level.HEALTHY]


def test_half_of_a_tier_blind_keeps_the_other_half_steering():
    fleet = topology(model("chat", tier("primary", "a", "b", "c", "d")))
    brain = warm(fleet, names="abcd")
    for at in range(11, 100):
        brain.feed(
            sample("a", float(at), kv_ratio=0.7), sample("b", float(at), kv_ratio=0.3), at=float(at)
        )
    assert brain.named("tier_frozen") == []
    assert brain.weights() == {"a": 800, "b": 1200, "c": 1000, "d": 1000}


def test_a_fresh_fleet_starts_at_full_weight():
    brain = Brain(small_fleet())
    brain.feed(*[sample(n, 0.5) for n in ALL], at=0.5)
    assert {i.ceiling for i in brain.tier().instances} == {1.0}
    assert {i.state for i in brain.tier().instances} == {FaultState.HEALTHY}


def test_agents_that_register_right_after_the_start_are_not_ramped():
    brain = Brain(topology(model("chat", tier("primary", "a"))))
    brain.until(5.0)
    brain.retarget(topology(model("chat", tier("primary", "a", "b"))))
    assert brain.instance("b").ceiling == 1.0
    brain.until(31.0)
    brain.retarget(topology(model("chat", tier("primary", "a", "b", "c"))))
    assert brain.instance("c").ceiling == 0.10
    assert [e.instance for _, e in brain.named("instance_joined")] == ["b", "c"]


def test_a_returning_telemetry_eases_the_weight_back():
    brain = warm(until=0.0)
    for at in range(1, 10):
        brain.feed(
            sample("a", float(at), kv_ratio=0.8),
            *[sample(n, float(at), kv_ratio=0.2) for n in "bcf"],
            at=float(at),
        )
    low = brain.weights()["a"]
    brain.run(("b", "c", "f"), until=20.0, kv_ratio=0.2)
    assert brain.weights()["a"] == low
    previous = low
    for at in range(21, 45):
        brain.feed(*[sample(n, float(at), kv_ratio=0.2) for n in ALL], at=float(at))
        assert abs(brain.weights()["a"] - previous) <= 75
        previous = brain.weights()["a"]
    assert previous == 1000


def test_agents_that_return_one_after_the_other_move_nothing_at_once():
    """The first to return are the mean of what is known: they must not take that for their place."""
    brain = warm()
    brain.until(200.0)
    loads = {"a": 0.3, "b": 0.3, "c": 0.9}
    at, previous = 200.0, brain.weights()
    for count in (1, 1, 2, 2, 3, 3, 3, 3):
        at += 0.5
        heard = list(loads.items())[:count]
        brain.feed(*[sample(name, at, kv_ratio=load) for name, load in heard], at=at)
        weights = brain.weights()
        assert all(abs(weights[name] - previous[name]) <= 75 for name in loads)
        previous = weights
    brain.until(at + 2.0)
    for _ in range(30):
        at = brain.now + 1.0
        brain.feed(*[sample(name, at, kv_ratio=load) for name, load in loads.items()], at=at)
    assert brain.weights() == pytest.approx({"a": 1200, "b": 1200, "c": 600}, abs=2)
    assert brain.state.models[0].tiers[0].easing == frozenset()
    assert {i.reason.rule for i in brain.tier().instances} == {"load_below_mean", "load_above_mean"}


def test_an_unmeasured_capacity_is_learned_from_what_runs_while_others_wait():
    brain = Brain(topology(model("chat", tier("primary", "a", "b", capacities=[None, None]))))
    for at in range(1, 30):
        brain.feed(
            sample("a", float(at), running=64.0, waiting=3.0, kv_ratio=0.5),
            sample("b", float(at), running=16.0, waiting=1.0, kv_ratio=0.5),
            at=float(at),
        )
    weights = brain.weights()
    assert weights["a"] / weights["b"] == pytest.approx(4.0, rel=0.15)


def test_a_capacity_reported_by_the_engine_stands_in_for_a_configured_one():
    brain = Brain(topology(model("chat", tier("primary", "a", "b", capacities=[None, 20.0]))))
    brain.feed(sample("a", 1.0, slots=60.0), sample("b", 1.0), at=1.0)
    assert brain.weights()["a"] == 3 * brain.weights()["b"]


def test_an_instance_that_moves_to_another_address_is_a_new_one():
    brain = warm(until=60.0)
    moved = tier("primary", "a", "b", "c")
    changed = type(moved)(
        name=moved.name,
        serves=moved.serves,
        instances=(instance("a", port=9), *moved.instances[1:]),
    )
    brain.retarget(topology(model("chat", changed, tier("fallback", "f", capacity=20.0))))
    assert {i.id: i.ceiling for i in brain.tier().instances} == {"a": 0.10, "b": 1.0, "c": 1.0}
    assert [e.name for _, e in brain.events[-2:]] == ["instance_left", "instance_joined"]


def test_an_operators_drain_goes_on_at_another_address_until_it_is_taken_back():
    brain = warm(until=60.0)
    brain.drain("a", who="ann", why="new disk")
    brain.drain("b", who="bob")
    brain.drain("b", draining=False)
    moved = tier("primary", "a", "b", "c")
    changed = type(moved)(
        name=moved.name,
        serves=moved.serves,
        instances=(instance("a", port=9), instance("b", port=10), *moved.instances[2:]),
    )
    fleet = topology(model("chat", changed, tier("fallback", "f", capacity=20.0)))
    brain.retarget(fleet)
    assert {i.id: i.ceiling for i in brain.tier().instances} == {"a": 0.0, "b": 0.10, "c": 1.0}
    assert "an operator drains it (ann: new disk)" in brain.instance("a").reason.text
    brain.drain("a", draining=False)
    assert brain.instance("a").ceiling == 0.10


def test_a_short_ramp_policy_is_obeyed():
    policy = Policy(recovery=RecoveryPolicy(stages=(0.5, 1.0), hold_s=2.0, jitter_ratio=0.0))
    brain = warm(policy=policy)
    brain.feed(sample("a", 11.0, state=EngineState.HUNG), at=11.0)
    seen = []
    for at in range(12, 20):
        brain.feed(*[sample(n, float(at)) for n in ALL], at=float(at))
        seen.append(brain.instance("a").ceiling)
    assert seen == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_burst_far_beyond_all_capacity_passes_and_everything_returns():
    """With nearly all requests answered statically the little that engines see must suffice."""
    brain = Brain(small_fleet())
    finished = dict.fromkeys(ALL, 0.0)

    def offer(rate: float, seconds: int) -> None:
        for _ in range(seconds):
            at = brain.now + 1.0
            primary, fallback, _ = (t.share for t in brain.model().tiers)
            news = []
            for name in ALL:
                arriving = rate * (fallback if name == "f" else primary / 3)
                served = min(arriving, 2.5 if name == "f" else 5.0)
                finished[name] += served
                queue = 0.0 if served == arriving else 50.0
                facts = {"running": served * 8, "waiting": queue, "kv_ratio": served / 5.0}
                news.append(sample(name, at, finished_total=finished[name], **facts))
            brain.feed(*news, at=at)

    offer(10.0, 60)
    assert brain.tier().weight == 1000
    offer(400.0, 120)
    assert brain.tier("static").weight > 800
    offer(5.0, 120)
    assert [t.weight for t in brain.model().tiers] == [1000, 0, 0]
