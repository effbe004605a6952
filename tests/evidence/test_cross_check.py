"""An agent against the load reports of its engine: who lies, who is dead, and what is only noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.brain import sample
from xds_server.core.policy import TelemetryPolicy
from xds_server.evidence.cross_check import CrossCheck, Standing
from xds_server.evidence.orca import Report

POLICY = TelemetryPolicy()


def played(check, seconds, *, start=0.0, agent=(0.2, 0.0), report=(0.2, 0.0), answers=4):
    """Let one report a second meet an agent's fresh sample; return what was told."""
    told = []
    for second in range(seconds):
        now = start + second
        said = sample("a", now, kv_ratio=agent[0], waiting=agent[1])
        reason = check.take(said, Report(*report, answers), POLICY, now + 0.5)
        if reason is not None:
            told.append((now, reason))
    return told


def test_an_agent_that_reads_another_engines_page_is_told_once_and_when_it_agrees_again():
    check = CrossCheck()
    told = played(check, 30, agent=(0.05, 0.0), report=(0.9, 25.0))
    ((at, reason),) = told
    assert 10 <= at <= 11
    assert reason.rule == "agent_contradicted"
    assert reason.text == (
        "The agent is contradicted: its engine reports KV usage 90%, while the agent says 5% to 5% "
        "and 25 waiting, while the agent says 0 to 0."
    )
    assert reason.inputs["reported_waiting"] == 25.0
    assert reason.inputs["agent_kv_ratio"] == 0.05
    ((_, again),) = played(check, 20, start=30.0)
    assert (again.rule, again.text) == ("agent_agrees", "Agent and engine agree again.")
    assert check.text == ""


@pytest.mark.parametrize(
    ("agent", "report", "answers"),
    [
        pytest.param((0.5, 4.0), (0.7, 10.0), 4, id="within the margins"),
        pytest.param((0.5, 40.0), (0.5, 55.0), 4, id="a long queue has a wide margin"),
        pytest.param((None, None), (0.9, 50.0), 4, id="an agent that does not say cannot lie"),
        pytest.param((0.1, 0.0), (None, None), 4, id="nor is nothing contradicted by nothing"),
        pytest.param((0.1, 0.0), (0.9, 50.0), 1, id="few reports are chance"),
    ],
)
def test_what_is_no_contradiction(agent, report, answers):
    check = CrossCheck()
    seconds = 15
    assert played(check, seconds, agent=agent, report=report, answers=answers) == []


def test_a_saw_tooth_that_reports_catch_at_its_top_is_no_lie():
    """vLLM swings between 1.0 and 0.75 within a second; answers end at any moment of it."""
    check = CrossCheck()
    for number in range(60):
        now = number * 0.5
        said = sample("a", now, kv_ratio=1.0 if number % 2 else 0.6, waiting=10.0)
        assert check.take(said, Report(1.0, 12.0, 10), POLICY, now) is None
    assert check.standing is Standing.AGREES


def test_an_agent_that_is_dead_while_its_engine_answers_is_told_at_once():
    check = CrossCheck()
    dead = sample("a", 0.0)
    assert check.take(dead, Report(0.2, 0.0, 1), POLICY, 1.0) is None
    reason = check.take(dead, Report(0.2, 0.0, 1), POLICY, 7.0)
    assert reason.rule == "agent_silent"
    assert reason.text == "The agent is silent: nothing for 7 s, while its engine answers requests."
    assert check.take(dead, Report(0.2, 0.0, 1), POLICY, 9.0) is None, "told once"
    assert "nothing for 9 s" in check.text
    back = check.take(
        sample("a", 10.0, kv_ratio=0.2, waiting=0.0), Report(0.2, 0.0, 1), POLICY, 10.0
    )
    assert back.rule == "agent_agrees"


def test_an_agent_that_returns_with_another_number_is_unknown_first():
    check = CrossCheck()
    check.take(sample("a", 0.0), Report(0.2, 0.0, 1), POLICY, 7.0)
    off = check.take(sample("a", 8.0, kv_ratio=0.0), Report(0.9, 0.0, 1), POLICY, 8.0)
    assert (off.rule, check.standing) == ("agent_unknown", Standing.UNKNOWN)


def test_without_an_agent_nothing_is_told():
    check = CrossCheck()
    for now in range(30):
        assert check.take(None, Report(0.9, 50.0, 9), POLICY, float(now)) is None
    assert check.standing is Standing.UNKNOWN


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100)), min_size=1, max_size=40))
def test_an_agent_that_says_what_the_engine_reports_is_never_doubted(numbers):
    check = CrossCheck()
    for now, (kv, waiting) in enumerate(numbers):
        said = sample("a", float(now), kv_ratio=kv, waiting=waiting)
        assert check.take(said, Report(kv, waiting, 50), POLICY, float(now)) is None
    assert check.standing is Standing.AGREES
