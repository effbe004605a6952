from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.engine import restarts
from sidecar_agent.engine.adapters import ADAPTERS, Options, Texts
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.lifecycle import Engine, Limits, observe
from sidecar_agent.engine.outcome import Outcome, OutcomeKind
from sidecar_agent.engine.restarts import Lifetime
from tests.fakes.engine_pages import PAGES, page

UP, DOWN, HUNG = EngineState.UP, EngineState.DOWN, EngineState.HUNG
LIMITS = Limits(hang_s=10.0, silence_s=10.0)
WORKING = {"state": UP, "running": 4.0, "waiting": 0.0, "kv_ratio": 0.5}


def heard(at, **facts):
    return Outcome(kind=OutcomeKind.PAGE, at=at, facts=EngineFacts(**{"state": UP, **facts}))


def failed(kind, at, detail="why"):
    return Outcome(kind=kind, at=at, detail=detail)


def fold(*outcomes, engine=None, limits=LIMITS, **more):
    engine = engine or Engine()
    for outcome in outcomes:
        engine = observe(engine, outcome, limits=limits, **more)
    return engine


def frozen(name, kind, times):
    facts = ADAPTERS[kind].read(Texts(metrics=page(name)), Options())
    return [Outcome(kind=OutcomeKind.PAGE, at=at, facts=facts) for at in times]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("vllm-0.32.0-engine_frozen.prom", "vllm"), ("sglang-0.5.23-engine_frozen.prom", "sglang")],
)
def test_trap_8_a_frozen_engine_behind_a_living_page_is_hung(name, kind):
    engine = fold(*frozen(name, kind, [0.0, 5.0, 9.9]))
    assert engine.state is UP
    engine = fold(*frozen(name, kind, [10.0]), engine=engine)
    assert engine.state is HUNG
    assert engine.facts.detail == "work but no progress for 10 s"
    assert engine.facts.running == 4  # what it said last is still told


@pytest.mark.parametrize(
    "moving", ["progress_total", "kv_ratio", "prompt_tokens_total", "preemptions_total"]
)
def test_an_engine_in_which_anything_moves_is_not_hung(moving):
    facts = [{**WORKING, "progress_total": 5.0, moving: 0.1 + n / 100} for n in range(30)]
    engine = fold(*(heard(float(n), **one) for n, one in enumerate(facts)))
    assert engine.state is UP


def test_an_idle_engine_is_never_hung():
    idle = {"running": 0.0, "waiting": 0.0, "progress_total": 5.0, "kv_ratio": 0.0}
    assert fold(*(heard(float(n), **idle) for n in range(100))).state is UP


def test_idle_time_does_not_count_towards_hanging():
    idle = [heard(float(n), running=0.0, progress_total=5.0) for n in range(50)]
    busy = [heard(50.0 + n, running=1.0, progress_total=5.0) for n in range(10)]
    assert fold(*idle, *busy).state is UP
    assert fold(*idle, *busy, heard(60.0, running=1.0, progress_total=5.0)).state is HUNG


def test_trap_15_a_queue_that_nobody_works_on_is_hung():
    stuck = {"running": 0.0, "waiting": 6.0, "kv_ratio": 0.0, "progress_total": 5.0}
    assert fold(*(heard(float(n), **stuck) for n in range(11))).state is HUNG


def test_an_engine_without_a_live_counter_is_never_called_hung_for_it():
    flat = {"running": 3.0, "waiting": 2.0, "generation_tokens_total": 5.0}
    assert fold(*(heard(float(n), **flat) for n in range(100))).state is UP


def test_the_watchdog_can_be_switched_off():
    off = Limits(hang_s=0.0)
    flat = {**WORKING, "progress_total": 5.0}
    assert fold(*(heard(float(n), **flat) for n in range(100)), limits=off).state is UP


def test_a_sleeping_engine_is_not_hung():
    asleep = {"state": EngineState.SLEEPING, "waiting": 1.0, "progress_total": 5.0}
    assert fold(*(heard(float(n), **asleep) for n in range(30))).state is EngineState.SLEEPING


def test_a_hung_engine_that_moves_again_is_up():
    flat = {**WORKING, "progress_total": 5.0}
    engine = fold(*(heard(float(n), **flat) for n in range(12)))
    assert engine.state is HUNG
    assert fold(heard(12.0, **{**flat, "progress_total": 6.0}), engine=engine).state is UP


def test_a_failed_scrape_says_nothing_and_is_never_read_as_idle():
    engine = fold(heard(0.0, **WORKING, progress_total=1.0))
    for kind in (OutcomeKind.SILENT, OutcomeKind.UNREACHABLE, OutcomeKind.BAD_PAGE):
        assert fold(failed(kind, 1.0), engine=engine).facts is None


def test_silence_becomes_hung_only_over_time_and_several_scrapes():
    silent = OutcomeKind.SILENT
    two = fold(heard(0.0, **WORKING), failed(silent, 1.0), failed(silent, 50.0))
    assert two.facts is None
    three = fold(failed(silent, 51.0, "no answer in 1 s"), engine=two)
    assert three.facts.state is HUNG
    assert three.facts.detail == "no answer in 1 s for 50 s"
    assert three.facts.running is None


def test_no_connection_for_long_is_down():
    outcomes = [failed(OutcomeKind.UNREACHABLE, float(n)) for n in range(11)]
    assert fold(*outcomes[:-1]).facts is None
    assert fold(*outcomes).facts.state is DOWN


def test_an_answer_ends_the_silence():
    silences = [failed(OutcomeKind.SILENT, float(n)) for n in range(9)]
    engine = fold(
        *silences, heard(9.0, **WORKING), *[failed(OutcomeKind.SILENT, 10.0 + n) for n in range(5)]
    )
    assert engine.facts is None


def test_a_refusal_is_down_at_once():
    engine = fold(heard(0.0, **WORKING), failed(OutcomeKind.REFUSED, 0.5, "connection refused"))
    assert (engine.facts.state, engine.facts.detail) == (DOWN, "connection refused")


def test_loading_is_said_at_once():
    engine = fold(failed(OutcomeKind.LOADING, 0.0, "the engine says it is loading"))
    assert engine.facts.state is EngineState.LOADING


def test_a_page_without_numbers_is_unknown_and_keeps_what_was_known_of_the_process():
    engine = fold(
        heard(0.0, **WORKING, generation_tokens_total=100.0),
        heard(1.0, state=EngineState.UNKNOWN),
        heard(2.0, **WORKING, generation_tokens_total=50.0),
    )
    assert engine.lifetime.count == 1


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ({"started_at_unix_s": 100.0}, {"started_at_unix_s": 160.0}, 1),
        ({"started_at_unix_s": 100.0}, {"started_at_unix_s": 100.4}, 0),
        ({"started_at_unix_s": 160.0}, {"started_at_unix_s": 100.0}, 0),
        ({"generation_tokens_total": 9.0}, {"generation_tokens_total": 3.0}, 1),
        ({"generation_tokens_total": 9.0}, {"generation_tokens_total": 9.0}, 0),
        ({"generation_tokens_total": 9.0}, {"generation_tokens_total": None}, 0),
        ({"generation_tokens_total": None}, {"generation_tokens_total": 3.0}, 0),
        (
            {"started_at_unix_s": 100.0, "generation_tokens_total": 9.0},
            {"started_at_unix_s": 200.0, "generation_tokens_total": 0.0},
            1,
        ),
        ({"progress_total": 9.0}, {"progress_total": 1.0}, 1),
        ({"finished_total": 9.0}, {"finished_total": 1.0}, 1),
    ],
    ids=[
        "a later start time",
        "clock granularity",
        "an earlier start time is another front end",
        "a counter went down",
        "a counter stood still",
        "a counter is absent",
        "a counter appeared",
        "both at once count once",
        "the progress counter went down",
        "finished requests went down",
    ],
)
def test_restarts_are_told_from_start_times_and_counters(before, after, count):
    lifetime = restarts.heard(Lifetime(), EngineFacts(**before))
    assert restarts.heard(lifetime, EngineFacts(**after)).count == count


def test_two_front_ends_that_answer_in_turn_are_one_restart_at_most():
    lifetime = Lifetime()
    for started in (100.0, 200.0, 100.0, 200.0, 100.0):
        lifetime = restarts.heard(lifetime, EngineFacts(started_at_unix_s=started))
    assert lifetime.count == 1


@pytest.mark.parametrize(
    ("facts", "count"),
    [
        ({}, 1),
        ({"generation_tokens_total": 9.0}, 0),
        ({"started_at_unix_s": 100.0, "generation_tokens_total": 0.0}, 0),
    ],
    ids=["nothing tells", "the counter went on", "the same process"],
)
def test_an_absence_is_a_restart_only_where_nothing_speaks_against_it(facts, count):
    lifetime = restarts.gone(restarts.heard(Lifetime(), EngineFacts(**facts)))
    lifetime = restarts.heard(lifetime, EngineFacts(**facts))
    assert lifetime.count == count
    assert restarts.heard(lifetime, EngineFacts(**facts)).count == count


def test_trap_9_a_counter_absent_for_one_scrape_does_not_hide_a_reset():
    lifetime = Lifetime()
    for generated in (50.0, None, 10.0):
        lifetime = restarts.heard(lifetime, EngineFacts(generation_tokens_total=generated))
    assert lifetime.count == 1


def test_the_first_page_is_no_restart_even_after_waiting_for_the_engine():
    engine = fold(failed(OutcomeKind.REFUSED, 0.0), heard(60.0, generation_tokens_total=0.0))
    assert engine.lifetime.count == 0


@pytest.mark.parametrize(
    ("signs", "vram", "suspected"),
    [
        ([{"kv_ratio": 1.0}], None, "KV cache 100% full"),
        ([{"kv_ratio": 0.97}], None, ""),
        ([{"kv_ratio": 0.5}], 100 * 2**20, "100 MiB of VRAM free"),
        ([{"kv_ratio": 0.5}], 4 * 2**30, ""),
        ([{"preemptions_total": 3.0}, {"preemptions_total": 5.0}], None, "preemptions rising"),
        ([{"preemptions_total": 5.0}, {"preemptions_total": 5.0}], None, ""),
    ],
    ids=["KV full", "KV not full", "no VRAM", "enough VRAM", "preemptions", "old preemptions"],
)
def test_an_engine_that_ends_with_full_memory_is_suspected_of_exhaustion(signs, vram, suspected):
    engine = fold(*(heard(float(n), **sign) for n, sign in enumerate(signs)), vram_free_bytes=vram)
    engine = fold(failed(OutcomeKind.REFUSED, 3.0, "connection refused"), engine=engine)
    assert engine.exhausted == suspected
    assert engine.facts.detail.endswith("just before") == bool(suspected)
    again = fold(failed(OutcomeKind.REFUSED, 60.0), engine=engine)
    assert again.exhausted == suspected, "it stays told for as long as the engine is away"
    assert fold(heard(70.0, kv_ratio=0.0), engine=again).exhausted == ""


def test_full_memory_long_before_the_end_is_no_sign():
    engine = fold(
        heard(0.0, kv_ratio=1.0), heard(9.0, kv_ratio=0.1), failed(OutcomeKind.REFUSED, 9.5)
    )
    assert not engine.exhausted


def test_an_end_that_was_asked_for_is_no_exhaustion():
    engine = fold(heard(0.0, kv_ratio=1.0), failed(OutcomeKind.REFUSED, 0.5), expected_end=True)
    assert not engine.exhausted


def test_killing_a_hung_engine_is_no_exhaustion():
    full = {**WORKING, "kv_ratio": 1.0, "progress_total": 5.0}
    engine = fold(*(heard(float(n), **full) for n in range(12)))
    assert engine.state is HUNG
    assert not fold(failed(OutcomeKind.REFUSED, 12.0), engine=engine).exhausted


def test_the_recorded_overload_shows_no_hang_and_no_restart():
    engine = Engine()
    with (PAGES / "vllm-0.32.0-trace.csv").open() as file:
        for row in csv.DictReader(file):
            outcome = heard(
                float(row["t"]),
                running=float(row["num_requests_running"]),
                waiting=float(row["num_requests_waiting"]),
                kv_ratio=float(row["kv_cache_usage_perc"]),
                generation_tokens_total=float(row["generation_tokens_total"]),
                progress_total=float(row["generation_tokens_total"]),
                preemptions_total=float(row["num_preemptions_total"]),
            )
            engine = fold(outcome, engine=engine)
            assert engine.state is UP
    assert engine.lifetime.count == 0


counts = st.none() | st.floats(0, 1000)
pages = st.builds(
    EngineFacts,
    state=st.sampled_from([UP, EngineState.UNKNOWN, EngineState.SLEEPING]),
    running=counts,
    waiting=counts,
    kv_ratio=st.none() | st.floats(0, 1),
    progress_total=counts,
    generation_tokens_total=counts,
    preemptions_total=counts,
    started_at_unix_s=st.none() | st.sampled_from([100.0, 200.0, 300.0]),
)
steps = st.lists(
    st.tuples(
        st.floats(0.01, 20.0),
        pages | st.sampled_from([kind for kind in OutcomeKind if kind is not OutcomeKind.PAGE]),
    ),
    max_size=30,
)


@given(steps=steps)
def test_whatever_happens_nothing_is_made_up(steps):
    engine, now = Engine(), 0.0
    for after, what in steps:
        now += after
        before = engine
        if isinstance(what, EngineFacts):
            outcome = Outcome(kind=OutcomeKind.PAGE, at=now, facts=what)
        else:
            outcome = failed(what, now)
        engine = fold(outcome, engine=engine)
        assert engine.lifetime.count - before.lifetime.count in {0, 1}
        facts = engine.facts
        if isinstance(what, EngineFacts):
            assert facts is not None
            assert (facts.running, facts.kv_ratio) == (what.running, what.kv_ratio)
            assert facts.state in {what.state, HUNG}
            assert what.state is not UP or not engine.exhausted
        elif what is OutcomeKind.REFUSED:
            assert engine.state is DOWN
        elif what is OutcomeKind.BAD_PAGE:
            assert facts is None
        if facts is not None and not isinstance(what, EngineFacts):
            assert (facts.running, facts.waiting, facts.kv_ratio) == (None, None, None)
