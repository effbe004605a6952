"""What one-token answers prove: hung, failing, or only busy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.engine.facts import EngineFacts, EngineState, TokenProbe, TokenResult
from sidecar_agent.engine.token_watch import (
    ROW,
    Answer,
    Reply,
    TokenWatch,
    applied,
    is_idle,
    observe,
)

IDLE = EngineFacts(
    state=EngineState.UP, running=0.0, waiting=0.0, generation_tokens_total=5.0, finished_total=1.0
)
BUSY = replace(IDLE, running=8.0, waiting=4.0)
OWN = replace(IDLE, running=1.0)


def told(*replies, before=IDLE, after=IDLE, watch=None):
    watch = watch or TokenWatch()
    for reply in replies:
        answer = Answer(reply=reply, took_s=0.8, detail=f"({reply})")
        watch = observe(watch, answer, before=before, after=after)
    return watch


@pytest.mark.parametrize(
    ("reply", "state"),
    [(Reply.LATE, EngineState.HUNG), (Reply.BROKEN, EngineState.DOWN)],
)
def test_three_silent_or_failed_answers_in_a_row_are_a_fault_and_two_are_none(reply, state):
    assert told(*[reply] * (ROW - 1)).state is None
    watch = told(*[reply] * ROW)
    facts = applied(IDLE, watch)
    assert facts.state is state
    assert facts.detail == f"asked for one token: ({reply}), 3 times in a row"
    assert facts.token_probe.row == 3


@pytest.mark.parametrize(
    ("reply", "before", "after", "result"),
    [
        pytest.param(Reply.REJECTED, IDLE, IDLE, TokenResult.BUSY, id="a full queue"),
        pytest.param(Reply.LATE, BUSY, BUSY, TokenResult.BUSY, id="others wait before"),
        pytest.param(Reply.LATE, IDLE, BUSY, TokenResult.BUSY, id="others came meanwhile"),
        pytest.param(
            Reply.LATE,
            IDLE,
            replace(OWN, generation_tokens_total=6.0),
            TokenResult.BUSY,
            id="tokens moved",
        ),
        pytest.param(
            Reply.LATE,
            EngineFacts(state=EngineState.UP),
            EngineFacts(state=EngineState.UP),
            TokenResult.BUSY,
            id="a load that is not said is not idle",
        ),
        pytest.param(Reply.LATE, IDLE, OWN, TokenResult.SILENT, id="only the agent's own request"),
    ],
)
def test_late_is_a_fault_only_where_nobody_else_has_work(reply, before, after, result):
    watch = told(*[reply] * 10, before=before, after=after)
    assert watch.said.result is result
    assert (watch.state is None) is (result is TokenResult.BUSY)


def test_a_full_queue_neither_adds_to_a_row_nor_ends_it():
    watch = told(Reply.BROKEN, Reply.BROKEN, Reply.REJECTED)
    assert (watch.said.row, watch.state) == (2, None)
    assert told(Reply.BROKEN, watch=watch).state is EngineState.DOWN


def test_only_a_token_brings_an_engine_back_that_was_proven_wrong():
    watch = told(*[Reply.LATE] * 3)
    for reply in (Reply.REJECTED, Reply.UNREACHED):
        watch = told(reply, watch=watch)
        assert applied(IDLE, watch).state is EngineState.HUNG
        assert "3 times in a row" in applied(IDLE, watch).detail
    watch = told(Reply.GIVEN, watch=watch)
    assert applied(IDLE, watch) == replace(IDLE, token_probe=TokenProbe(TokenResult.OK, 0, 0.8))


def test_a_request_that_the_engine_calls_wrong_says_nothing_about_it():
    watch = told(Reply.LATE, Reply.LATE, Reply.UNUSABLE)
    assert applied(IDLE, watch) == IDLE
    assert watch.detail == "(unusable)"


@pytest.mark.parametrize(
    "state", [each for each in EngineState if each is not EngineState.UP], ids=str
)
def test_what_the_page_says_of_an_engine_that_is_not_up_is_not_overruled(state):
    facts = replace(IDLE, state=state)
    assert applied(facts, told(*[Reply.LATE] * 3)) == facts


@given(st.lists(st.sampled_from(list(Reply)), max_size=30))
def test_no_order_of_answers_faults_an_engine_without_three_bad_ones_since_the_last_token(replies):
    watch = told(*replies)
    since = replies
    for reset in (Reply.GIVEN, Reply.UNUSABLE):
        if reset in since:
            since = since[len(since) - since[::-1].index(reset) :]
    bad = sum(reply in (Reply.LATE, Reply.BROKEN) for reply in since)
    assert (watch.state is not None) is (bad >= ROW)


@given(
    st.one_of(st.none(), st.floats(0, 100)),
    st.one_of(st.none(), st.floats(0, 100)),
)
def test_an_engine_that_runs_something_or_says_nothing_is_never_idle(running, waiting):
    facts = replace(IDLE, running=running, waiting=waiting)
    expected = running == 0 and not waiting
    assert is_idle(facts, IDLE) is expected
