"""What is told once a second: who succeeds again, what classes asked for, and the trouble inside engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.fakes.brain import sample
from tests.fakes.evidence_bench import a_fleet
from tests.fakes.plans import a_plan
from tests.fakes.proxy_reports import a_load, a_log, an_entry
from tests.fakes.waiting import PATIENCE_S
from xds_server.core.model import RequestClass
from xds_server.core.plan import FaultState, Reason
from xds_server.core.policy import Policy, RecoveryPolicy
from xds_server.core.sample import EngineFacts, EngineState, Sample
from xds_server.evidence import pulse as pulses
from xds_server.evidence.engine_trouble import AllocationFailures, restart_loops
from xds_server.evidence.page import describe_evidence
from xds_server.evidence.proto import parse_load, parse_logs
from xds_server.evidence.pulse import Pulse
from xds_server.fleet import Fleet


def take(bench, *entries):
    bench.intake.take_logs(parse_logs(a_log(*entries)).entries)


def with_state(plan, name, state, rule):
    """Return the plan with one instance in another state."""
    (model,) = plan.models
    tiers = tuple(
        replace(
            tier,
            instances=tuple(
                replace(each, state=state, basis=Reason(rule=rule, text=rule))
                if each.id == name
                else each
                for each in tier.instances
            ),
        )
        for tier in model.tiers
    )
    return replace(plan, models=(replace(model, tiers=tiers),))


@pytest.fixture
def beating(bench):
    bench.now = 100.0
    bench.latest = {}
    bench.pulse = Pulse(
        intake=bench.intake,
        fleet=lambda: bench.fleet,
        latest=lambda: bench.latest,
        clock=bench.clock,
    )
    return bench


def beat(bench, now):
    bench.now = now
    bench.pulse.beat()


def test_only_an_instance_that_is_waited_for_is_vouched_for_and_once_per_success(beating):
    plan = a_plan(a_fleet())
    beating.fleet.plan = with_state(plan, "primary-0", FaultState.RECOVERING, "engine_down")
    take(beating, an_entry(8001), an_entry(8002))
    beat(beating, 101.0)
    assert [each.instance for each in beating.verdicts] == ["primary-0"]
    beat(beating, 102.0)
    assert len(beating.verdicts) == 1
    beating.fleet.plan = plan
    take(beating, an_entry(8001))
    beat(beating, 103.0)
    assert len(beating.verdicts) == 1


def test_without_a_plan_nobody_is_waited_for(beating):
    take(beating, an_entry(8001))
    beat(beating, 101.0)
    assert beating.verdicts == []
    assert list(restart_loops(None)) == []


def test_what_each_class_asked_for_reaches_the_brain(beating, monkeypatch):
    topology = replace(a_fleet(), classes=(RequestClass(name="core"), RequestClass(name="rest")))
    beating.fleet = Fleet(topology, beating.policy, 0.0)
    seen = []
    monkeypatch.setattr(beating.fleet, "saw_requests", lambda *what: seen.append(what))
    take(beating, an_entry(route="chat/core"))
    beat(beating, 101.0)
    beat(beating, 102.0)
    assert seen == [("chat", {"core": 1}, 101.0)]


def test_the_brain_thinks_again_when_classes_ask_for_other_shares(beating):
    topology = replace(
        a_fleet(), classes=(RequestClass(name="core", header="x"), RequestClass(name="rest"))
    )
    beating.fleet = Fleet(topology, beating.policy, 0.0)
    beating.fleet.evaluate([], 0.0)
    thoughts = []
    beating.pulse = Pulse(
        intake=beating.intake,
        fleet=lambda: beating.fleet,
        latest=lambda: beating.latest,
        clock=beating.clock,
        think=lambda: thoughts.append(beating.now),
    )
    take(beating, an_entry(route="chat/core"))
    beat(beating, 101.0)
    beat(beating, 102.0)
    assert thoughts == [101.0]


async def test_it_beats_by_itself(beating, monkeypatch):
    monkeypatch.setattr(pulses, "PULSE_S", 0.01)
    beats = asyncio.Event()
    monkeypatch.setattr(beating.pulse, "beat", beats.set)
    running = asyncio.create_task(beating.pulse.run())
    await asyncio.wait_for(beats.wait(), PATIENCE_S)
    running.cancel()


def rates(found):
    return {labels: value for _, labels, value in found}


def test_preemptions_per_second_and_tier():
    failures = AllocationFailures()
    fleet = a_fleet()
    for now, one, other in ((0.0, 10.0, 0.0), (5.0, 20.0, 0.0), (10.0, 30.0, 5.0)):
        latest = {
            "primary-0": sample("primary-0", now, preemptions_total=one),
            "primary-1": sample("primary-1", now, preemptions_total=other),
        }
        failures.step(fleet, latest, now)
    assert rates(failures.readings()) == {("chat", "primary"): 2.5}


@pytest.mark.parametrize(
    ("totals", "rate"),
    [
        pytest.param([], None, id="nothing yet"),
        pytest.param([7.0], None, id="one look"),
        pytest.param([7.0, 7.0], 0.0, id="none"),
        pytest.param([7.0, 2.0], 0.4, id="a restart counts from zero"),
        pytest.param([None, None], None, id="an engine that does not say is not zero"),
        pytest.param([None, 50.0], 0.0, id="what was before is not known"),
    ],
)
def test_preemptions_of_one_instance(totals, rate):
    failures = AllocationFailures()
    for step, total in enumerate(totals):
        latest = {"primary-0": sample("primary-0", 5.0 * step, preemptions_total=total)}
        failures.step(a_fleet(), latest, 5.0 * step)
    assert rates(failures.readings()).get(("chat", "primary")) == rate


def test_two_looks_at_the_same_moment_are_no_rate():
    failures = AllocationFailures()
    for total in (1.0, 5.0):
        failures.step(
            a_fleet(), {"primary-0": sample("primary-0", 0.0, preemptions_total=total)}, 0.0
        )
    assert rates(failures.readings()) == {}


@pytest.mark.parametrize(
    ("state", "rule", "count"),
    [
        (FaultState.QUARANTINED, "out_of_memory", 1.0),
        (FaultState.QUARANTINED, "engine_restarted", 1.0),
        (FaultState.QUARANTINED, "engine_down", 1.0),
        (FaultState.QUARANTINED, "engine_hung", 0.0),
        (FaultState.QUARANTINED, "gpu_lost", 0.0),
        (FaultState.DOWN, "out_of_memory", 0.0),
    ],
)
def test_restart_loops_are_quarantines_for_memory_or_restarts(beating, state, rule, count):
    beating.fleet.plan = with_state(a_plan(a_fleet()), "primary-0", state, rule)
    found = rates(beating.pulse.readings())
    assert found == {("chat", "primary"): count, ("chat", "fallback"): 0.0}


CRASHES = {
    "nobody listens for a while": [EngineFacts(state=EngineState.DOWN)],
    "its memory was full": [EngineFacts(state=EngineState.DOWN, out_of_memory=True)],
    "it loads again": [
        EngineFacts(state=EngineState.DOWN),
        EngineFacts(state=EngineState.LOADING),
    ],
    "between two scrapes": [],
}


@pytest.mark.parametrize("seen", CRASHES.values(), ids=CRASHES)
def test_an_engine_that_keeps_ending_is_a_loop_however_its_agent_sees_it(seen):
    policy = Policy(recovery=RecoveryPolicy(hold_s=0.1, jitter_ratio=0.0))
    fleet, now = Fleet(a_fleet(), policy, 0.0), 0.0
    for restarts in range(5):
        for engine in (*seen, *[EngineFacts(state=EngineState.UP)] * 8):
            now += 0.2
            is_again = not seen or engine.state is EngineState.UP
            told = replace(engine, restarts=restarts + is_again)
            fleet.evaluate([Sample(instance="primary-0", observed_at=now, engine=told)], now)
    found = rates(restart_loops(fleet.plan))
    assert found == {("chat", "primary"): 1.0, ("chat", "fallback"): 0.0}


def test_the_page_shows_every_instance_and_missing_is_not_zero(beating):
    take(beating, an_entry(8001, latency_s=1.0), an_entry(8001, latency_s=1.0))
    beating.intake.take_load("edge", parse_load(a_load((8001, 2, 2, 0, 3))))
    (model,) = describe_evidence(beating.intake, a_fleet())["models"]
    primary, fallback = model["tiers"]
    one, other = primary["instances"]
    assert (one["attempts"], one["outcomes"], one["in_progress"]) == (2, {"ok": 2}, 3)
    assert one["latency_s"]["p99"] == pytest.approx(1.0, rel=0.03)
    assert other == {"instance": "primary-1", "in_progress": None}
    assert primary["attempts"] == 2
    assert "attempts" not in fallback
