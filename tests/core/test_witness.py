"""Proxies and agents agree and disagree."""

from __future__ import annotations

import pytest

from tests.fakes.brain import sample
from xds_server.core import faults, witness
from xds_server.core.evidence import IN_ROW, RATE
from xds_server.core.finding import judge
from xds_server.core.inputs import Evidence
from xds_server.core.plan import FaultState
from xds_server.core.policy import RecoveryPolicy
from xds_server.core.sample import EngineState
from xds_server.core.track import Context

POLICY = RecoveryPolicy(jitter_ratio=0.0, hold_s=30.0)
UP, DOWN, LOADING = EngineState.UP, EngineState.DOWN, EngineState.LOADING
UNKNOWN, HUNG = EngineState.UNKNOWN, EngineState.HUNG


class Instance:
    """One track, with what its agent and the proxies say."""

    def __init__(self):
        self.track = faults.present(0.0)
        self.last = None
        self.now = 0.0
        self.is_fresh = False

    def context(self):
        return Context("a", POLICY, self.now)

    def says(self, now, state=UP, **facts):
        """The agent speaks."""
        self.now, self.is_fresh = now, True
        self.last = sample("a", now, state=state, **facts)
        self.track = faults.observe(self.track, self.last, self.context())
        return self.track

    def silent(self, now):
        """The agent's last word is old now; time passes."""
        self.now, self.is_fresh = now, False
        self.track = faults.settle(self.track, self.finding, self.context(), fresh=False)
        self.track = faults.expire(
            self.track, None if self.last is None else self.last.observed_at, self.context()
        )
        return self.track

    def proxies(self, now, cause="", detail=""):
        """The proxies speak."""
        self.now = now
        evidence = Evidence(instance="a", observed_at=now, cause=cause, detail=detail)
        self.track = witness.witness(
            self.track, evidence, self.finding, self.context(), fresh=self.is_fresh
        )
        return self.track

    @property
    def finding(self):
        return None if self.last is None else judge(self.last)

    @property
    def ceiling(self):
        return faults.ceiling(self.track, POLICY)

    @property
    def due(self):
        observed_at = None if self.last is None else self.last.observed_at
        return faults.deadline(self.track, observed_at, POLICY)


def test_failures_that_the_agent_knows_nothing_of_take_an_instance_down_and_it_returns_in_stages():
    one = Instance()
    one.says(1.0)
    one.proxies(2.0, IN_ROW, "3 in a row: 3 error")
    assert (one.track.state, one.track.cause) == (FaultState.DOWN, IN_ROW)
    assert one.track.detail == "3 in a row: 3 error; its agent says it is up"
    assert one.ceiling == 0.0
    # The agent's good word was there before: it must last for a hold.
    one.says(3.0)
    assert one.track.state is FaultState.DOWN
    assert one.due == 33.0
    one.says(32.9)
    assert one.track.state is FaultState.DOWN
    one.says(33.0)
    assert one.track.state is FaultState.RECOVERING
    assert one.ceiling == 0.10
    one.says(63.0)
    one.says(93.0)
    one.says(123.0)
    assert one.track.state is FaultState.HEALTHY
    assert one.track.faults == (), "only what an agent confirms counts toward quarantine"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param(None, "its agent is silent", id="no agent"),
        pytest.param(UNKNOWN, "its agent cannot tell", id="an agent that cannot tell"),
    ],
)
def test_the_reason_says_what_the_agent_knew(state, words):
    one = Instance()
    if state is not None:
        one.says(1.0, state)
    assert one.proxies(2.0, RATE, "12 of 20 in 10 s").detail == f"12 of 20 in 10 s; {words}"


def test_a_relapse_in_the_ramp_doubles_the_hold():
    one = Instance()
    one.says(1.0)
    one.proxies(2.0, IN_ROW)
    one.says(3.0)
    one.says(33.0)
    one.proxies(34.0, IN_ROW)
    assert one.track.relapses == 1
    one.says(35.0)
    one.says(65.0)
    assert one.track.state is FaultState.RECOVERING
    assert one.track.hold_s == 60.0


def test_evidence_alone_never_quarantines():
    one = Instance()
    now = 1.0
    for _ in range(6):
        one.says(now)
        one.proxies(now, IN_ROW)
        one.says(now + 1.0)
        one.says(now + 31.0)
        assert one.track.state is FaultState.RECOVERING
        now += 32.0
    assert one.track.faults == ()


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        pytest.param(DOWN, "engine_down", id="down"),
        pytest.param(HUNG, "engine_hung", id="hung"),
    ],
)
def test_an_agent_that_confirms_takes_over_and_the_fault_counts(state, cause):
    one = Instance()
    one.says(1.0)
    one.proxies(2.0, IN_ROW)
    one.says(3.0, state)
    assert (one.track.state, one.track.cause) == (FaultState.DOWN, cause)
    assert one.track.seen == faults.WAS_FIRST
    assert one.track.faults == (3.0,)
    one.says(4.0)
    assert one.track.state is FaultState.RECOVERING, "its good word is news now"
    assert one.track.seen == ""


def test_a_loop_that_proxies_always_see_first_is_quarantined_all_the_same():
    one = Instance()
    now = 1.0
    one.says(now)
    for _ in range(POLICY.quarantine_faults):
        assert one.track.state is not FaultState.QUARANTINED
        one.proxies(now + 1.0, IN_ROW)
        one.says(now + 2.0, DOWN, out_of_memory=True)
        one.says(now + 3.0)
        one.says(now + 60.0)
        now += 61.0
    assert one.track.state is FaultState.QUARANTINED


def test_an_engine_that_restarted_explains_what_proxies_saw():
    one = Instance()
    one.says(1.0)
    one.proxies(2.0, IN_ROW)
    one.says(3.0, restarts=1)
    assert (one.track.state, one.track.cause) == (FaultState.WARMING, "engine_restarted")
    assert one.track.faults == (3.0,)


def test_an_engine_that_loads_after_what_proxies_saw_ramps_when_it_is_up():
    one = Instance()
    one.says(1.0)
    one.proxies(2.0, IN_ROW)
    one.says(3.0, LOADING)
    assert one.track.is_loading
    assert one.track.faults == (3.0,)
    one.says(9.0)
    assert one.track.is_ramping


def test_against_the_agents_fault_success_changes_nothing_but_the_reason():
    one = Instance()
    one.says(1.0)
    one.says(2.0, DOWN)
    before = one.track
    one.proxies(2.5)
    assert (one.track.state, one.track.cause) == (FaultState.DOWN, "engine_down")
    assert one.track.seen == witness.DISAGREES
    assert one.proxies(3.5) is one.track
    assert before.since == one.track.since


def test_with_the_agents_fault_failures_only_agree():
    one = Instance()
    one.says(1.0)
    one.says(2.0, DOWN)
    one.proxies(2.5, IN_ROW)
    assert one.track.cause == "engine_down"
    assert one.track.seen == witness.AGREES


@pytest.mark.parametrize("cause", ["", IN_ROW], ids=["success", "failures"])
def test_once_out_by_evidence_more_of_it_changes_nothing(cause):
    one = Instance()
    one.says(1.0)
    out = one.proxies(2.0, IN_ROW)
    assert one.proxies(2.1, cause) is out


def test_success_of_a_healthy_instance_is_no_news():
    one = Instance()
    healthy = one.says(1.0)
    assert one.proxies(2.0) is healthy


def test_failures_of_an_engine_that_is_drained_are_expected():
    one = Instance()
    one.says(1.0, draining=True)
    assert one.track.state is FaultState.DRAINING
    draining = one.track
    assert one.proxies(2.0, IN_ROW) is draining


def test_without_an_agent_it_gets_a_trial_after_a_hold_and_advances_on_the_proxies_word():
    one = Instance()
    one.proxies(2.0, IN_ROW, "3 in a row")
    assert one.due == 32.0
    assert one.silent(31.0).state is FaultState.DOWN
    assert (one.silent(32.0).state, one.track.cause) == (FaultState.RECOVERING, "silent_trial")
    # Nobody says anything: it stays on the first stage.
    one.silent(500.0)
    assert (one.track.stage, one.due) == (0, float("inf"))
    for now in range(500, 531):
        one.proxies(float(now))
    assert one.track.stage == 1
    # The proxies fall silent for longer than their word counts: the timer stops, and keeps what was left.
    assert one.due == 540.0
    one.silent(540.0)
    assert one.due == float("inf")
    for now in range(600, 621):
        one.proxies(float(now))
    assert one.track.stage == 2
    for now in range(621, 652):
        one.proxies(float(now))
    assert one.track.state is FaultState.HEALTHY


def test_failures_in_a_trial_double_the_time_to_the_next():
    one = Instance()
    one.proxies(0.0, IN_ROW)
    one.silent(30.0)
    one.proxies(31.0, IN_ROW)
    assert one.due == 91.0


def test_an_agent_that_falls_silent_meanwhile_leaves_it_to_the_trial():
    one = Instance()
    one.says(1.0)
    one.proxies(2.0, IN_ROW)
    one.says(3.0)
    assert one.due == 33.0
    one.silent(10.0)
    assert one.due == 32.0
    assert one.silent(32.0).cause == "silent_trial"


def test_an_agent_that_is_sure_is_not_overruled_by_success_in_a_ramp():
    one = Instance()
    one.says(1.0)
    one.says(2.0, DOWN)
    one.says(3.0)
    assert one.track.is_ramping
    one.proxies(4.0)
    assert one.track.served_at == 4.0
    one.says(14.5)
    assert one.track.served_at is None, "old evidence is none"
    assert one.track.is_ramping


@pytest.mark.parametrize(
    ("out", "size", "may"),
    [
        (0, 1, True), (0, 2, True), (1, 2, False), (1, 3, True), (2, 3, False), (1, 4, True),
        (2, 4, False), (3, 8, True), (4, 8, False),
    ],
)  # fmt: skip
def test_evidence_takes_out_at_most_half_of_a_tier(out, size, may):
    tracks = []
    for number in range(size):
        one = Instance()
        if number < out:
            one.proxies(1.0, IN_ROW)
        tracks.append(one.track)
    assert witness.may_take_out(tracks) is may
