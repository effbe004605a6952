from __future__ import annotations

from dataclasses import replace

import pytest

from demo.outcome import Death, Kind, Outcome, Verdict

DEATH = Death(engine="a100-1", at_s=10.0)

STREAM = Outcome(
    kind=Kind.STREAM,
    proxy="sotw",
    started_s=9.0,
    headers_s=9.1,
    first_byte_s=9.2,
    ended_s=10.01,
    status=200,
    model="llama-3-70b",
    engine="a100-1",
    error="ClientPayloadError",
)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        pytest.param(replace(STREAM, is_complete=True, error=""), Verdict.OK, id="whole"),
        pytest.param(STREAM, Verdict.CUT, id="running when its instance died"),
        pytest.param(replace(STREAM, engine="a100-0"), Verdict.FAILED, id="another one died"),
        pytest.param(replace(STREAM, ended_s=9.5), Verdict.FAILED, id="cut before the death"),
        pytest.param(
            replace(STREAM, started_s=11.0, headers_s=11.1, ended_s=12.0),
            Verdict.FAILED,
            id="started after the death",
        ),
        pytest.param(replace(STREAM, kind=Kind.PLAIN), Verdict.FAILED, id="plain, never excused"),
        pytest.param(
            replace(STREAM, status=None, headers_s=None, engine=""),
            Verdict.FAILED,
            id="no headers yet: a proxy can retry that",
        ),
        pytest.param(replace(STREAM, status=503, engine=""), Verdict.FAILED, id="an error status"),
    ],
)
def test_only_a_stream_that_ran_on_the_dying_instance_is_excused(outcome, verdict):
    assert outcome.verdict([DEATH]) is verdict


def test_without_a_death_a_cut_stream_is_a_failure():
    assert STREAM.verdict([]) is Verdict.FAILED


def test_times_are_counted_from_the_start():
    assert STREAM.wait_s == pytest.approx(0.2)
    assert STREAM.latency_s == pytest.approx(1.01)
    assert replace(STREAM, first_byte_s=None).wait_s is None
