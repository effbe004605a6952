"""What a sample adds to the flow of its instance."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.brain import sample
from xds_server.core.flow import InstanceFlow, observe
from xds_server.core.policy import SpillPolicy
from xds_server.core.sample import EngineState

POLICY = SpillPolicy()


def play(*samples, policy=POLICY):
    flow, previous = None, None
    for item in samples:
        flow = observe(flow, previous, item, policy)
        previous = item
    return flow


def steady(*, rate, service_s, until, every=0.5, **changes):
    """Samples of an engine in balance: `rate` requests/s, each `service_s` long."""
    facts = {"running": rate * service_s, "waiting": 0.0} | changes
    return [
        sample("a", at * every, finished_total=rate * at * every, **facts)
        for at in range(int(until / every) + 1)
    ]


def test_the_first_sample_knows_no_rate():
    flow = play(sample("a", 3.0))
    assert flow == InstanceFlow(at=3.0)
    assert flow.rate is None


@pytest.mark.parametrize("every", [0.1, 0.5, 2.0, 10.0])
def test_a_steady_engine_admits_what_it_completes_at_any_sampling_interval(every):
    flow = play(*steady(rate=5.0, service_s=8.0, until=60.0, every=every))
    assert isclose(flow.rate, 5.0)
    # One slot completes one request per service time.
    assert isclose(flow.completed / flow.busy_slot_s, 1.0 / 8.0)


def test_requests_that_are_still_inside_count_as_admitted():
    flow = play(
        sample("a", 0.0, running=4.0, waiting=0.0, finished_total=10.0),
        sample("a", 1.0, running=6.0, waiting=3.0, finished_total=12.0),
    )
    assert flow.rate == 2.0 + 2.0 + 3.0


def test_a_running_request_counts_as_a_part_of_a_completion():
    flow = play(
        sample("a", 0.0, running=0.0, finished_total=0.0),
        sample("a", 1.0, running=10.0, finished_total=2.0),
    )
    assert flow.completed == 2.0 + POLICY.in_progress_credit * 10.0
    assert flow.busy_slot_s == 5.0


def test_the_counters_of_two_readers_are_not_compared():
    """An agent counts from the engine's start, load reports from when they were first asked for."""
    before = steady(rate=5.0, service_s=2.0, until=30.0)
    known = play(*before)
    other = replace(
        sample("a", 31.0, finished_total=1e6, running=10.0, waiting=0.0), agent="another"
    )
    flow = observe(known, before[-1], other, POLICY)
    assert flow == replace(known, at=31.0)
    after = replace(
        sample("a", 32.0, finished_total=1e6 + 5, running=10.0, waiting=0.0), agent="another"
    )
    assert isclose(observe(flow, other, after, POLICY).rate, 5.0, rel_tol=0.01)


def test_a_sample_that_is_not_newer_adds_nothing():
    flow = play(*steady(rate=5.0, service_s=8.0, until=5.0))
    last = sample("a", 5.0, running=40.0, finished_total=25.0)
    for at in (5.0, 4.0):
        late = sample("a", at, running=1.0, finished_total=99.0)
        assert observe(flow, last, late, POLICY) is flow


@pytest.mark.parametrize(
    "restart",
    [
        pytest.param({"restarts": 1, "finished_total": 150.0}, id="restart counter grew"),
        pytest.param({"finished_total": 3.0}, id="counter fell"),
    ],
)
def test_after_a_restart_everything_counts_from_zero(restart):
    before = sample("a", 0.0, running=40.0, waiting=9.0, finished_total=100.0)
    after = sample("a", 1.0, **({"running": 2.0, "waiting": 1.0} | restart))
    flow = play(before, after)
    assert flow.rate == restart["finished_total"] + 2.0 + 1.0
    assert flow.busy_slot_s == 1.0


@pytest.mark.parametrize("name", ["running", "waiting", "finished_total"])
def test_a_missing_number_is_neither_zero_nor_bad(name):
    known = steady(rate=5.0, service_s=8.0, until=20.0)
    flow = play(*known)
    gap = sample("a", 21.0, **({"running": 40.0, "finished_total": 105.0} | {name: None}))
    after = observe(flow, known[-1], gap, POLICY)
    assert after.rate == flow.rate
    assert after.at == 21.0
    # And the interval out of the gap has no beginning.
    back = observe(after, gap, sample("a", 22.0, running=40.0, finished_total=110.0), POLICY)
    assert back.rate == flow.rate


def test_a_missing_queue_still_teaches_the_service_time():
    flow = play(*steady(rate=5.0, service_s=8.0, until=20.0, waiting=None))
    assert flow.rate is None
    assert isclose(flow.completed / flow.busy_slot_s, 1.0 / 8.0)


@pytest.mark.parametrize("state", [EngineState.DOWN, EngineState.LOADING, EngineState.SLEEPING])
def test_an_engine_that_is_not_up_admits_nothing(state):
    known = steady(rate=5.0, service_s=8.0, until=20.0)
    flow = play(*known)
    numbers = dict.fromkeys(("running", "waiting", "finished_total", "kv_ratio"))
    down = sample("a", 20.0 + POLICY.demand_smoothing_s, state=state, **numbers)
    after = observe(flow, known[-1], down, POLICY)
    assert after.rate < flow.rate / 2.0
    # What it could do is not forgotten.
    assert (after.completed, after.busy_slot_s) == (flow.completed, flow.busy_slot_s)


def test_what_was_learned_survives_an_idle_night():
    known = steady(rate=5.0, service_s=8.0, until=60.0)
    flow, previous = play(*known), known[-1]
    for at in range(61, 8 * 3600, 20):
        idle = sample("a", float(at), running=0.0, waiting=0.0, finished_total=340.0)
        flow, previous = observe(flow, previous, idle, POLICY), idle
    assert flow.rate < 1e-6
    assert flow.completed >= POLICY.capacity_requests * 0.99
    assert isclose(flow.completed / flow.busy_slot_s, 1.0 / 8.0, rel_tol=0.15)


def test_a_drift_of_the_service_time_is_learned_within_the_window():
    known = steady(rate=5.0, service_s=8.0, until=120.0)
    flow, previous = play(*known), known[-1]
    for second in range(1, 91):
        slower = sample(
            "a", 120.0 + second, running=60.0, waiting=0.0, finished_total=600.0 + 5.0 * second
        )
        flow, previous = observe(flow, previous, slower, POLICY), slower
    assert isclose(flow.busy_slot_s / flow.completed, 12.0, rel_tol=0.1)


def test_two_samples_minutes_apart_give_a_rate_but_no_service_time():
    known = steady(rate=5.0, service_s=8.0, until=60.0)
    flow = play(*known)
    late = sample("a", 180.0, running=3.0, waiting=0.0, finished_total=300.0 + 480.0)
    after = observe(flow, known[-1], late, POLICY)
    assert isclose(after.rate, (480.0 - 37.0) / 120.0, rel_tol=0.01)
    assert (after.completed, after.busy_slot_s) == (flow.completed, flow.busy_slot_s)


def test_requests_that_clients_gave_up_never_make_a_rate_negative():
    flow = play(
        sample("a", 0.0, running=40.0, waiting=20.0, finished_total=10.0),
        sample("a", 1.0, running=0.0, waiting=0.0, finished_total=10.0),
    )
    assert flow.rate == 0.0
    assert flow.completed == 0.0


def test_tokens_are_counted_per_request():
    samples = [
        replace(
            item,
            engine=replace(
                item.engine,
                prompt_tokens_total=500.0 * item.engine.finished_total,
                generation_tokens_total=200.0 * item.engine.finished_total,
            ),
        )
        for item in steady(rate=5.0, service_s=8.0, until=30.0)
    ]
    flow = play(*samples)
    assert isclose(flow.tokens / flow.token_requests, 700.0)


def test_an_engine_that_counts_no_tokens_says_nothing_about_them():
    flow = play(*steady(rate=5.0, service_s=8.0, until=30.0))
    assert (flow.tokens, flow.token_requests) == (0.0, 0.0)


NUMBER = st.one_of(st.none(), st.floats(0.0, 1e6))
FACTS = st.tuples(
    st.floats(0.0, 100.0),
    st.fixed_dictionaries(
        {
            "state": st.sampled_from(list(EngineState)),
            "running": NUMBER,
            "waiting": NUMBER,
            "finished_total": NUMBER,
            "prompt_tokens_total": NUMBER,
            "generation_tokens_total": NUMBER,
            "restarts": st.integers(0, 3),
        }
    ),
)


@given(st.lists(FACTS, max_size=20))
def test_no_history_makes_a_sum_negative(history):
    now, samples = 0.0, []
    for elapsed_s, facts in history:
        now += elapsed_s
        samples.append(sample("a", now, **facts))
    flow = play(*samples)
    if flow is not None:
        sums = (flow.admitted, flow.admitted_s, flow.completed, flow.busy_slot_s, flow.tokens)
        assert all(value >= 0.0 for value in (*sums, flow.token_requests))
        assert flow == play(*samples)
