from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from demo.outcome import Death, Kind, Outcome
from demo.play import FALLBACK, PRIMARY, STATIC
from demo.report import (
    Effect,
    Phase,
    after_text,
    effect_table,
    outcome_table,
    percentile,
    rows,
    summary_lines,
)

TIERS = {"llama-3-70b": PRIMARY, "llama-3-8b": FALLBACK}
GOOD = Outcome(
    kind=Kind.PLAIN,
    proxy="sotw",
    started_s=1.0,
    headers_s=1.1,
    first_byte_s=1.1,
    ended_s=1.2,
    status=200,
    model="llama-3-70b",
    engine="a100-0",
    is_complete=True,
)
SMALL = replace(GOOD, started_s=5.0, first_byte_s=5.3, ended_s=5.4, model="llama-3-8b")
BUSY = replace(GOOD, started_s=5.5, first_byte_s=5.5, ended_s=5.5, model="static", engine="")
REFUSED = Outcome(kind=Kind.PLAIN, proxy="delta", started_s=6.0, ended_s=6.1, error="refused")
CUT = replace(
    GOOD,
    kind=Kind.STREAM,
    started_s=6.5,
    headers_s=6.6,
    ended_s=7.0,
    is_complete=False,
    error="cut",
)
DEATHS = [Death(engine="a100-0", at_s=7.0)]
PHASES = [Phase(name="normal", start_s=0, end_s=5), Phase(name="oom", start_s=5, end_s=9)]


def text_of(table) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    return console.file.getvalue()


def test_requests_count_in_the_phase_they_started_in():
    normal, oom, everything = rows(
        [GOOD, SMALL, BUSY, REFUSED, CUT], PHASES, deaths=DEATHS, tiers=TIERS
    )

    assert (normal.requests, normal.failed, normal.cut) == (1, 0, 0)
    assert (oom.requests, oom.failed, oom.cut) == (4, 1, 1)
    assert (everything.name, everything.requests) == ("all", 5)
    assert oom.served == {FALLBACK: 1, STATIC: 1, PRIMARY: 1}


def test_times_are_those_of_complete_answers_in_milliseconds():
    normal, oom, _ = rows([GOOD, CUT], PHASES, deaths=DEATHS, tiers=TIERS)

    assert normal.whole_ms == (pytest.approx(200), pytest.approx(200))
    assert normal.first_byte_ms == (pytest.approx(100), pytest.approx(100))
    assert oom.whole_ms is None


def test_the_table_shows_every_phase_and_tier():
    table_rows = rows([GOOD, SMALL, REFUSED], PHASES, deaths=DEATHS, tiers=TIERS)
    text = text_of(outcome_table(table_rows, (PRIMARY, FALLBACK, STATIC)))

    for word in ("normal", "oom", "all", "failed", "cut", PRIMARY, FALLBACK, STATIC, "200 / 200"):
        assert word in text


def test_an_effect_that_never_came_is_called_never():
    text = text_of(effect_table([Effect(cause="a", effect="b", after_s=None)]))

    assert "never" in text


@pytest.mark.parametrize(
    ("after_s", "text"),
    [(0.0, "0 ms"), (0.0123, "12 ms"), (1.0, "1.0 s"), (12.34, "12.3 s"), (None, "never")],
)
def test_reaction_times_have_a_unit_that_suits_them(after_s, text):
    assert after_text(after_s) == text


@pytest.mark.parametrize(
    ("ratio", "value"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)], ids=str
)
def test_percentiles_are_values_that_were_seen(ratio, value):
    assert percentile(range(1, 101), ratio) == value


def test_a_percentile_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_summary_names_models_and_faults():
    lines = summary_lines([GOOD, SMALL, REFUSED])

    assert lines[0] == "requests 3, failed 1"
    assert "served by llama-3-8b: 1" in lines
    assert lines[-1] == "1 x refused"
