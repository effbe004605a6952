"""A simulated engine behaves like one."""

from __future__ import annotations

from math import inf, isclose

import pytest

from xds_server.core.sample import EngineState
from xds_server.simulation.engine import Engine, EngineSpec
from xds_server.simulation.workload import CHAT, Profile, Request


def engine(**changes):
    spec = EngineSpec(**({"slots": 2, "tokens_per_s": 10.0, "kv_tokens": 10_000.0} | changes))
    return Engine(spec=spec, lengths=CHAT)


def request(at=0.0, *, prompt=80.0, output=100.0):
    return Request(arrived_at=at, prompt=prompt, output=output)


def test_requests_run_in_slots_and_the_rest_waits_in_order_of_arrival():
    it = engine()
    asked = [request() for _ in range(4)]
    for each in asked:
        it.offer(each, 0.0)
    assert (len(it.running), len(it.waiting)) == (2, 2)
    # 80 tokens of prompt at 8000/s and 100 tokens at 10/s.
    it.advance(10.0)
    assert it.finished_total == 0
    it.advance(10.01)
    assert it.finished_total == 2
    assert [each.started_at for each in asked] == [
        0.0,
        0.0,
        pytest.approx(10.01),
        pytest.approx(10.01),
    ]
    it.advance(100.0)
    assert (it.finished_total, len(it.running), it.kv_ratio, it.next_at()) == (4, 0, 0.0, inf)
    assert isclose(it.busy_slot_s, 4 * 10.01)


def test_the_cache_grows_with_every_token_and_is_freed_at_the_end():
    it = engine(kv_tokens=1000.0)
    it.offer(request(), 0.0)
    facts = it.facts(5.0)
    assert facts.kv_ratio == pytest.approx((80.0 + 8.0 + 50.0) / 1000.0, rel=0.01)
    assert facts.generation_tokens_total == pytest.approx(50.0, rel=0.01)
    assert facts.prompt_tokens_total == 80.0
    assert it.facts(11.0).kv_ratio == 0.0


def test_a_full_cache_preempts_the_youngest_and_computes_it_again():
    it = engine(kv_tokens=300.0)
    old, young = request(), request()
    it.offer(old, 0.0)
    it.offer(young, 0.0)
    it.advance(9.0)
    # 2 * (80 + 8 + 10 t) = 300 at t = 6.2.
    assert it.preemptions_total == 1
    assert (len(it.running), len(it.waiting)) == (1, 1)
    assert it.waiting[0] is young
    assert young.prompt == pytest.approx(142.0, abs=1.0)
    assert young.output == pytest.approx(38.0, abs=1.0)
    it.advance(60.0)
    assert it.finished_total == 2
    # Its first token was computed for at once, whatever happened later.
    assert young.started_at == 0.0


def test_a_request_that_is_too_long_for_the_cache_ends_at_its_limit():
    it = engine(kv_tokens=150.0)
    it.offer(request(output=1000.0), 0.0)
    it.advance(60.0)
    assert (it.finished_total, it.kv_ratio) == (1, 0.0)


def test_a_request_waits_for_room_in_the_cache_although_a_slot_is_free():
    it = engine(kv_tokens=200.0)
    it.offer(request(), 0.0)
    it.offer(request(prompt=120.0), 0.0)
    assert (len(it.running), len(it.waiting)) == (1, 1)


def test_a_drift_makes_later_requests_slower():
    it = engine(slowdown=Profile(points=((0.0, 1.0), (100.0, 2.0))))
    it.offer(request(), 100.0)
    it.advance(119.0)
    assert it.finished_total == 0
    it.advance(120.1)
    assert it.finished_total == 1


def test_an_engine_out_of_memory_has_no_numbers_and_comes_back_empty():
    it = engine()
    for _ in range(3):
        it.offer(request(), 0.0)
    broken, unserved = it.crash(1.0)
    assert (len(broken), len(unserved)) == (2, 1)
    facts = it.facts(2.0)
    assert (facts.state, facts.out_of_memory) == (EngineState.DOWN, True)
    assert (facts.running, facts.waiting, facts.finished_total, facts.kv_ratio) == (None,) * 4
    it.restart(83.0)
    facts = it.facts(84.0)
    assert (facts.state, facts.restarts, facts.out_of_memory) == (EngineState.UP, 1, False)
    assert (facts.running, facts.finished_total, facts.generation_tokens_total) == (0.0, 0.0, 0.0)


def test_the_default_cache_holds_full_slots_with_some_headroom():
    spec = EngineSpec(slots=40)
    mean = CHAT.prompt.mean + CHAT.output.length_biased_mean / 2.0 + 8.0
    assert isclose(spec.kv_capacity(CHAT), 40 * mean * 1.15)
    assert isclose(spec.service_s(CHAT), 500.0 / 8000.0 + 200.0 / 25.0)
