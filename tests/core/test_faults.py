from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.brain import gpu, sample
from tests.fakes.tracked import DOWN, LOADING, POLICY, UP, Instance, at
from xds_server.core import faults
from xds_server.core.finding import Condition, judge
from xds_server.core.plan import FaultState
from xds_server.core.policy import RecoveryPolicy
from xds_server.core.sample import EngineState, GpuHealth, TokenProbe, TokenResult
from xds_server.core.track import Context


@pytest.mark.parametrize(
    ("facts", "condition", "cause"),
    [
        pytest.param({}, Condition.GOOD, "engine_up", id="up"),
        pytest.param({"out_of_memory": True}, Condition.GOOD, "engine_up", id="up after an OOM"),
        pytest.param({"state": DOWN}, Condition.FAULT, "engine_down", id="down"),
        pytest.param(
            {"state": DOWN, "out_of_memory": True}, Condition.FAULT, "out_of_memory", id="OOM"
        ),
        pytest.param({"state": EngineState.HUNG}, Condition.FAULT, "engine_hung", id="hung"),
        pytest.param(
            {"state": EngineState.HUNG, "token_probe": TokenProbe(TokenResult.SILENT, 3)},
            Condition.FAULT,
            "token_late",
            id="no token though idle",
        ),
        pytest.param(
            {"state": EngineState.DOWN, "token_probe": TokenProbe(TokenResult.FAILED, 3)},
            Condition.FAULT,
            "token_failed",
            id="no token but a failure",
        ),
        pytest.param(
            {"state": EngineState.HUNG, "token_probe": TokenProbe(TokenResult.BUSY)},
            Condition.FAULT,
            "engine_hung",
            id="the page says hung, the token says nothing",
        ),
        pytest.param(
            {"state": EngineState.UP, "token_probe": TokenProbe(TokenResult.SILENT, 2)},
            Condition.GOOD,
            "engine_up",
            id="two late tokens are no fault yet",
        ),
        pytest.param({"state": LOADING}, Condition.LOADING, "engine_loading", id="loading"),
        pytest.param(
            {"state": EngineState.SLEEPING}, Condition.SLEEPING, "engine_sleeping", id="asleep"
        ),
        pytest.param(
            {"state": EngineState.UNKNOWN}, Condition.UNKNOWN, "engine_unknown", id="unknown"
        ),
        pytest.param(
            {"gpu": gpu(GpuHealth.LOST)}, Condition.FAULT, "gpu_lost", id="GPU lost under an engine"
        ),
        pytest.param(
            {"gpu": gpu(GpuHealth.RESET_REQUIRED), "state": DOWN},
            Condition.FAULT,
            "gpu_reset_required",
            id="the GPU is the cause",
        ),
        pytest.param(
            {"gpu": gpu(GpuHealth.THROTTLED)}, Condition.GOOD, "engine_up", id="throttled"
        ),
        pytest.param(
            {"gpu": gpu(GpuHealth.UNKNOWN)}, Condition.GOOD, "engine_up", id="GPU unknown"
        ),
    ],
)
def test_what_a_sample_means(facts, condition, cause):
    finding = judge(sample("a", 0.0, **facts))
    assert (finding.condition, finding.cause) == (condition, cause)


def test_an_unremarkable_sample_changes_nothing():
    one = Instance()
    before = one.see()
    assert one.see() is before


def test_recovery_is_staged_and_each_stage_is_held():
    one = Instance()
    one.stay(5)
    one.see(state=DOWN)
    assert (one.track.state, one.ceiling) == (FaultState.DOWN, 0.0)
    ceilings = []
    for _ in range(95):
        one.see()
        ceilings.append(one.ceiling)
    assert ceilings == [0.10] * 30 + [0.30] * 30 + [1.0] * 35
    assert one.track.state is FaultState.HEALTHY
    assert one.track.relapses == 0


def test_the_hold_needs_fresh_evidence_and_pauses_without():
    one = Instance()
    one.see()
    one.see(state=DOWN)
    one.see(now=10.0)
    one.settle(20.0, fresh=False)
    assert (one.track.due_at, one.track.left_s) == (None, 20.0)
    assert one.settle(500.0, fresh=False).stage == 0
    one.see(now=600.0)
    assert one.track.due_at == 620.0
    assert one.settle(620.0, fresh=True).stage == 1


def test_an_unknown_engine_is_neither_a_fault_nor_evidence():
    one = Instance()
    one.see()
    assert one.see(state=EngineState.UNKNOWN).state is FaultState.HEALTHY
    one.see(state=DOWN)
    one.stay(100, state=EngineState.UNKNOWN)
    assert one.track.state is FaultState.DOWN
    one.see()
    one.stay(100, state=EngineState.UNKNOWN)
    assert one.ceiling == 0.10


def test_a_relapse_needs_proof_and_doubles_the_hold():
    one = Instance()
    one.see()
    one.see(state=DOWN)
    one.see()
    assert one.track.hold_s == 30.0
    one.see(state=EngineState.HUNG)
    assert one.track.relapses == 1
    one.stay(30)
    assert one.track.state is FaultState.DOWN
    one.see()
    assert (one.track.state, one.track.hold_s) == (FaultState.RECOVERING, 60.0)


def test_proof_after_a_relapse_is_one_piece():
    one = Instance()
    one.see()
    one.see(state=DOWN)
    one.see()
    one.see(state=DOWN)
    one.stay(20)
    one.see(state=DOWN)
    assert one.track.due_at is None
    one.stay(30)
    assert one.track.state is FaultState.DOWN
    assert one.see().state is FaultState.RECOVERING


def test_proof_after_a_relapse_pauses_in_silence():
    one = Instance()
    one.see()
    one.see(state=DOWN)
    one.see()
    one.see(state=DOWN)
    one.see(now=10.0)
    one.settle(20.0, fresh=False)
    assert one.track.left_s == 20.0
    one.see(now=100.0)
    assert one.track.due_at == 120.0


@pytest.mark.parametrize(
    ("relapses", "hold_s"), [(0, 30.0), (1, 60.0), (4, 480.0), (5, 480.0), (5000, 480.0)]
)
def test_the_hold_doubles_up_to_its_cap(relapses, hold_s):
    down = replace(
        faults.present(0.0), state=FaultState.DOWN, relapses=relapses, restarts=0, left_s=0.0
    )
    track = faults.observe(down, sample("a", 1.0), at(1.0))
    assert track.hold_s == hold_s


def test_holds_are_jittered_per_instance_and_episode_and_always_the_same():
    policy = RecoveryPolicy(jitter_ratio=0.10, hold_s=30.0)
    holds = {}
    for name in "abcdefgh":
        for episode in (0, 1):
            down = replace(faults.present(0.0), state=FaultState.DOWN, restarts=0, episode=episode)
            ramps = [
                faults.observe(down, sample(name, 1.0), Context(name, policy, 1.0))
                for _ in range(2)
            ]
            assert ramps[0] == ramps[1]
            holds[name, episode] = ramps[0].hold_s
    assert len(set(holds.values())) == 16
    assert all(30.0 <= hold_s < 33.0 for hold_s in holds.values())


def test_an_engine_that_restarts_again_and_again_is_quarantined():
    one = Instance()
    one.see(restarts=0)
    for restarts in (1, 2):
        one.see(restarts=restarts)
    # The second one interrupted a ramp, so it must prove itself first.
    assert (one.track.state, one.track.cause) == (FaultState.DOWN, "engine_restarted")
    one.stay(31, restarts=2)
    assert one.track.state is FaultState.RECOVERING
    one.see(restarts=3)
    assert one.track.state is FaultState.QUARANTINED
    assert faults.deadline(one.track, one.now, POLICY) == one.now + 300.0
    one.stay(299, restarts=3)
    assert (one.track.state, one.ceiling) == (FaultState.QUARANTINED, 0.0)
    one.see(restarts=3)
    assert (one.track.state, one.ceiling) == (FaultState.RECOVERING, 0.10)


def test_three_restarts_at_once_are_a_loop():
    one = Instance()
    one.see(restarts=0)
    assert one.see(restarts=3).state is FaultState.QUARANTINED


def test_a_quarantine_that_ends_without_evidence_leaves_it_down_until_there_is():
    one = Instance()
    one.see()
    for _ in range(3):
        one.see(state=DOWN)
        one.stay(32)
    assert one.track.state is FaultState.QUARANTINED
    one.stay(301, state=DOWN)
    assert one.track.state is FaultState.DOWN
    one.see()
    assert one.track.state is FaultState.RECOVERING


def test_faults_long_ago_do_not_make_a_loop():
    one = Instance()
    one.see()
    for _ in range(5):
        one.see(state=DOWN)
        one.see(now=one.now + 700.0)
        one.see(now=one.now + 35.0)
        one.see(now=one.now + 35.0)
        one.see(now=one.now + 35.0)
        assert one.track.state is FaultState.HEALTHY


def test_a_restart_counter_that_falls_is_a_new_agent():
    one = Instance()
    one.see(restarts=7)
    assert one.see(restarts=0).state is FaultState.HEALTHY
    assert one.see(restarts=1).state is FaultState.WARMING


def test_sleeping_gets_nothing_but_never_leads_to_quarantine():
    one = Instance()
    one.see()
    for _ in range(10):
        one.see(state=EngineState.SLEEPING)
        assert (one.track.state, one.ceiling) == (FaultState.DOWN, 0.0)
        one.stay(32)
        assert one.track.state is FaultState.RECOVERING
    assert one.track.faults == ()


def test_a_loading_engine_at_the_start_is_not_ready_and_then_ramps():
    one = Instance()
    one.see(state=LOADING)
    assert (one.track.state, one.ceiling) == (FaultState.WARMING, 0.0)
    before = one.track
    assert one.see(state=LOADING) is before
    one.see()
    assert (one.track.state, one.track.cause, one.ceiling) == (
        FaultState.WARMING,
        "engine_loaded",
        0.10,
    )
    assert one.track.faults == ()
    one.stay(91)
    assert one.track.state is FaultState.HEALTHY


def test_a_serving_engine_that_loads_again_counts_as_a_fault():
    one = Instance()
    one.see()
    one.see(state=LOADING)
    assert len(one.track.faults) == 1
    assert one.track.is_loading
    for _ in range(2):
        one.see()
        one.see(state=LOADING)
    assert one.track.state is FaultState.QUARANTINED


def test_a_down_engine_that_loads_stays_down_until_it_is_up():
    one = Instance()
    one.see()
    down = one.see(state=DOWN)
    assert one.see(state=LOADING) is down
    assert one.see(restarts=1).state is FaultState.RECOVERING


def test_a_loading_engine_that_dies_is_down_without_counting():
    one = Instance()
    one.see(state=LOADING)
    one.see(state=DOWN)
    assert one.track.state is FaultState.DOWN
    assert one.track.faults == ()


def test_the_cause_of_an_outage_follows_what_the_agent_learns():
    one = Instance()
    one.see()
    first = one.see(state=DOWN)
    assert one.see(state=DOWN) is first
    one.see(state=DOWN, out_of_memory=True, detail="exit code 137")
    assert (one.track.cause, one.track.detail) == ("out_of_memory", "exit code 137")
    assert one.track.since == first.since


def test_a_dead_hosts_silence_keeps_its_instance_down_until_the_trial():
    one = Instance()
    one.see()
    one.see(state=DOWN)
    heard = one.now
    assert faults.deadline(one.track, heard, POLICY) == heard + 600.0
    assert faults.expire(one.track, heard, at(heard + 599.0)) is one.track
    trial = faults.expire(one.track, heard, at(heard + 600.0))
    assert (trial.state, trial.cause) == (FaultState.RECOVERING, "silent_trial")
    assert faults.ceiling(trial, POLICY) == 0.10
    assert faults.deadline(trial, heard, POLICY) == inf
    assert faults.settle(trial, judge(one.last), at(9000.0), fresh=False).stage == 0


def test_a_trial_goes_on_with_evidence():
    one = Instance()
    one.see()
    one.see(state=DOWN)
    one.track = faults.expire(one.track, one.now, at(one.now + 600.0))
    one.see(now=1000.0)
    assert one.track.due_at == 1030.0


def test_a_trial_is_given_to_a_silent_loading_engine_but_not_to_a_drained_one():
    one = Instance()
    one.see(state=LOADING)
    assert faults.expire(one.track, None, at(700.0)).state is FaultState.RECOVERING
    drained = faults.drain(one.track, at(2.0), who="ann")
    assert faults.expire(drained, None, at(700.0)).state is FaultState.DRAINING
    healthy = faults.present(0.0)
    assert faults.expire(healthy, None, at(700.0)) is healthy


def test_a_newcomer_ramps_on_time_alone_while_it_has_no_telemetry():
    track = faults.joined(at(0.0))
    assert (track.state, faults.ceiling(track, POLICY)) == (FaultState.WARMING, 0.10)
    for now in (30.0, 60.0, 90.0):
        track = faults.settle(track, None, at(now), fresh=False)
    assert track.state is FaultState.HEALTHY


def test_a_ceiling_survives_a_policy_with_fewer_stages():
    track = replace(faults.joined(at(0.0)), stage=2)
    assert faults.ceiling(track, RecoveryPolicy(stages=(0.5, 1.0))) == 1.0


STATES = st.sampled_from([UP, DOWN, LOADING, EngineState.HUNG, EngineState.SLEEPING])


@settings(deadline=None)
@given(st.lists(st.tuples(STATES, st.integers(0, 1)), min_size=1, max_size=150))
def test_no_sequence_of_samples_makes_an_instance_flap(steps):
    """Whatever engines do, the ceiling rises from zero at most three times per quarantine or proof."""
    one, rises, restarts = Instance(), [], 0
    for state, restarted in steps:
        restarts += restarted
        before = one.ceiling
        one.see(state=state, restarts=restarts)
        if before == 0.0 and one.ceiling > 0.0:
            rises.append(one.now)
    limit = POLICY.quarantine_faults
    assert all(rises[n + limit] - rises[n] >= POLICY.hold_s for n in range(len(rises) - limit))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(STATES, st.integers(0, 1), st.booleans()), max_size=60))
def test_recovery_is_always_reachable(steps):
    one, restarts = Instance(RecoveryPolicy()), 0
    for state, restarted, draining in steps:
        restarts += restarted
        one.see(state=state, restarts=restarts, draining=draining)
    longest = 1.1 * (POLICY.quarantine_s + POLICY.hold_s + 3 * POLICY.hold_max_s)
    one.stay(longest, restarts=restarts)
    assert (one.track.state, one.ceiling) == (FaultState.HEALTHY, 1.0)
