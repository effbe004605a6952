"""Evidence through the whole brain: weights, reasons, events, and no busy loops."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.brain import Brain, gpu, model, sample, tier, topology
from xds_server.core import persist
from xds_server.core.evidence import IN_ROW
from xds_server.core.explain import explain
from xds_server.core.inputs import Evidence
from xds_server.core.plan import EndpointHealth, FaultState
from xds_server.core.policy import Policy, RecoveryPolicy
from xds_server.core.sample import EngineState, GpuHealth

POLICY = Policy(recovery=RecoveryPolicy(jitter_ratio=0.0, hold_s=30.0))


def fleet(*names):
    return topology(model("chat", tier("primary", *names), tier("fallback", "z")))


def failing(name, at, detail="3 in a row: 3 error"):
    return Evidence(instance=name, observed_at=at, cause=IN_ROW, detail=detail)


def serving(name, at):
    return Evidence(instance=name, observed_at=at, cause="")


def test_what_proxies_see_takes_an_instance_out_at_once_and_says_why():
    brain = Brain(fleet("a", "b"), POLICY)
    brain.run("abz", until=5.0)
    brain.feed(failing("a", 5.2), at=5.2)
    one = brain.instance("a")
    assert (one.state, one.health) == (FaultState.DOWN, EndpointHealth.UNHEALTHY)
    assert one.reason.rule == IN_ROW
    assert one.reason.text == (
        "It gets nothing: proxies saw its requests fail (3 in a row: 3 error; its agent says it is up)."
    )
    assert explain(brain.plan, "a")["changes_when"].startswith("Fresh samples that say")
    assert brain.instance("b").health is EndpointHealth.HEALTHY
    ((at, event),) = brain.named("instance_down")
    assert (at, event.instance, event.reason.rule) == (5.2, "a", IN_ROW)


def test_it_returns_by_stages_while_its_agent_keeps_saying_that_it_is_up():
    brain = Brain(fleet("a", "b"), POLICY)
    brain.run("abz", until=5.0)
    brain.feed(failing("a", 5.0), at=5.0)
    ceilings = []
    for until in (30.0, 40.0, 70.0, 100.0, 140.0):
        brain.run("abz", until=until)
        ceilings.append(brain.instance("a").ceiling)
    assert ceilings == [0.0, 0.1, 0.3, 1.0, 1.0]
    assert brain.instance("a").state is FaultState.HEALTHY


def test_a_fleet_without_agents_lives_on_what_proxies_see():
    brain = Brain(fleet("a", "b"), POLICY)
    brain.feed(failing("a", 40.0), at=40.0)
    assert brain.instance("a").ceiling == 0.0
    assert brain.instance("a").reason.text.endswith("its agent is silent).")
    brain.until(69.0)
    assert brain.instance("a").ceiling == 0.0
    brain.until(70.0)
    assert brain.instance("a").ceiling == 0.1
    brain.until(1000.0)
    assert brain.instance("a").ceiling == 0.1, "nobody says that it serves"
    for second in range(1001, 1100):
        brain.feed(serving("a", float(second)), at=float(second))
    assert brain.instance("a").state is FaultState.HEALTHY


def test_at_most_half_of_a_tier_goes_by_evidence_and_the_rest_is_held_back():
    brain = Brain(fleet("a", "b", "c"), POLICY)
    brain.run("abcz", until=5.0)
    brain.feed(failing("a", 6.0), failing("b", 6.0), failing("c", 6.0), at=6.0)
    brain.feed(failing("c", 7.0), failing("a", 7.0), at=7.0)
    states = [brain.instance(name).state for name in "abc"]
    assert states == [FaultState.DOWN, FaultState.DOWN, FaultState.HEALTHY]
    held = brain.named("evidence_held_back")
    assert [(at, event.instance) for at, event in held] == [(6.0, "c"), (7.0, "c")]
    assert "half of its tier" in held[0][1].reason.text
    assert "3 in a row" in held[0][1].reason.text


def test_what_agents_took_out_does_not_protect_the_rest():
    brain = Brain(fleet("a", "b"), POLICY)
    brain.run("abz", until=5.0)
    brain.feed(sample("a", 6.0, state=EngineState.DOWN), at=6.0)
    brain.feed(failing("b", 7.0), at=7.0)
    assert brain.instance("b").state is FaultState.DOWN
    assert brain.tier("primary").share == 0.0


def test_a_tier_of_one_goes_too():
    brain = Brain(fleet("a"), POLICY)
    brain.run("az", until=5.0)
    brain.feed(failing("a", 6.0), at=6.0)
    assert brain.tier("primary").share == 0.0
    assert brain.tier("fallback").share > 0.9


@pytest.mark.parametrize(
    ("facts", "rule", "text"),
    [
        pytest.param(
            {"state": EngineState.DOWN},
            "engine_down",
            "It gets nothing: its engine does not answer, though proxies still see its requests succeed.",
            id="down",
        ),
        pytest.param(
            {"gpu": gpu(GpuHealth.LOST)},
            "gpu_lost",
            "It gets nothing: it lost a GPU, though proxies still see its requests succeed.",
            id="GPU lost",
        ),
    ],
)
def test_an_agents_fault_stands_against_success_and_the_reason_says_so(facts, rule, text):
    brain = Brain(fleet("a", "b"), POLICY)
    brain.run("abz", until=5.0)
    brain.feed(sample("a", 6.0, **facts), at=6.0)
    brain.feed(serving("a", 6.5), at=6.5)
    one = brain.instance("a")
    assert (one.state, one.reason.rule, one.reason.text) == (FaultState.DOWN, rule, text)
    assert one.reason.inputs["proxies"] == "though proxies still see its requests succeed"


def test_evidence_about_an_unknown_instance_changes_nothing():
    brain = Brain(fleet("a"), POLICY)
    before = brain.plan.models
    brain.feed(failing("nobody", 1.0), serving("a", 1.0), at=1.0)
    assert brain.plan.models is before
    assert brain.named("instance_down") == []


def test_an_instance_that_proxies_took_out_is_still_out_after_a_restart():
    brain = Brain(fleet("a", "b"), POLICY)
    brain.run("abz", until=5.0)
    brain.feed(failing("a", 6.0), at=6.0)
    data = persist.dump(brain.state, brain.plan, 7.0)
    brain.state = persist.restore(fleet("a", "b"), POLICY, data, 100.0)
    brain.now = 100.0
    brain.feed()
    assert brain.instance("a").reason.rule == IN_ROW
    brain.run("abz", until=135.0)
    assert brain.instance("a").state is FaultState.RECOVERING


SAID = st.sampled_from(["up", "down", "hung", "unknown", "fails", "serves", "nothing"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 45.0), st.sampled_from("ab"), SAID), max_size=40))
def test_whatever_agents_and_proxies_say_nothing_spins_and_every_ceiling_is_a_stage(steps):
    brain = Brain(fleet("a", "b"), POLICY)
    now = 0.0
    for gap_s, name, said in steps:
        now += gap_s
        what = {
            "fails": [failing(name, now)],
            "serves": [serving(name, now)],
            "nothing": [],
        }.get(said)
        if what is None:
            what = [sample(name, now, state=EngineState(said))]
        brain.feed(*what, at=now)  # `until` asserts that no deadline is in the past
        for each in "ab":
            assert brain.instance(each).ceiling in (0.0, 0.1, 0.3, 1.0)
            assert brain.instance(each).reason.text
        out = [each for each in "ab" if brain.instance(each).reason.rule == IN_ROW]
        down = [each for each in out if brain.instance(each).ceiling == 0.0]
        assert len(down) <= 1, "at most half of the tier goes by evidence"
    brain.until(now + 5000.0)
