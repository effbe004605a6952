from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.batch import Batch, BatchSpec, Histogram, RequestTooLongError

STEP_S = 0.1


def spec(**changes) -> BatchSpec:
    sizes = {"slots": 4, "kv_tokens": 160, "block_tokens": 16, "tokens_per_s": 10.0}
    return BatchSpec(**{**sizes, **changes})


def run_until_idle(batch: Batch, limit: int = 10_000) -> int:
    steps = 0
    while batch.running or batch.waiting:
        batch.advance(STEP_S)
        steps += 1
        assert steps < limit
    return steps


def test_kv_usage_grows_by_a_block_when_tokens_cross_a_border():
    batch = Batch(spec())
    sequence = batch.submit(prompt_tokens=15, max_tokens=20)
    batch.advance(STEP_S)
    assert sequence.blocks == 1
    seen = {}
    while not sequence.is_complete:
        batch.advance(STEP_S)
        if sequence.blocks:
            seen[sequence.tokens] = sequence.blocks

    assert seen[16] == 1
    assert seen[17] == 2
    assert seen[32] == 2
    assert seen[33] == 3


def test_an_answer_has_the_asked_length_and_frees_its_memory():
    batch = Batch(spec())
    sequence = batch.submit(prompt_tokens=10, max_tokens=25)

    run_until_idle(batch)

    assert sequence.generated == 25
    assert batch.kv_ratio == 0.0
    assert batch.counters.finished == 1
    assert batch.counters.generation_tokens == 25
    assert batch.counters.prompt_tokens == 10


def test_the_speed_is_that_of_each_running_request():
    batch = Batch(spec(tokens_per_s=20.0))
    for _ in range(4):
        batch.submit(prompt_tokens=4, max_tokens=20)

    # One step to be admitted, one to prefill, then 20 tokens at 20 tokens/s.
    assert run_until_idle(batch) == 12


def test_requests_beyond_the_slots_wait_in_the_order_of_arrival():
    batch = Batch(spec(kv_tokens=1600))
    sequences = [batch.submit(prompt_tokens=4, max_tokens=5) for _ in range(6)]
    batch.advance(STEP_S)

    assert batch.running == sequences[:4]
    assert list(batch.waiting) == sequences[4:]


def test_a_request_waits_for_memory_even_when_slots_are_free():
    batch = Batch(spec())
    batch.submit(prompt_tokens=100, max_tokens=5)
    late = batch.submit(prompt_tokens=100, max_tokens=5)
    batch.advance(STEP_S)
    batch.advance(STEP_S)

    assert list(batch.waiting) == [late]
    assert batch.overfull_s == pytest.approx(2 * STEP_S)


def test_the_youngest_is_preempted_and_continues_where_it_was():
    batch = Batch(spec())
    old = batch.submit(prompt_tokens=70, max_tokens=30)
    young = batch.submit(prompt_tokens=70, max_tokens=30)
    preempted_with = None
    while not old.is_complete:
        before = young.generated
        batch.advance(STEP_S)
        if batch.counters.preemptions and preempted_with is None:
            preempted_with = before
            assert young not in batch.running
            assert batch.waiting[0] is young
    run_until_idle(batch)

    assert preempted_with is not None
    assert young.generated == 30
    assert batch.counters.generation_tokens == 60
    # The prompt counts once, however often it is read again.
    assert batch.counters.prompt_tokens == 140


def test_max_tokens_is_cut_to_what_fits_as_vllm_does():
    batch = Batch(spec(context_tokens=40))

    assert batch.submit(prompt_tokens=30, max_tokens=100).max_tokens == 10


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers():
    batch = Batch(spec(context_tokens=40))

    with pytest.raises(RequestTooLongError, match=r"40 tokens; expected less than 40"):
        batch.submit(prompt_tokens=40, max_tokens=1)


def test_an_aborted_request_gives_its_memory_back():
    batch = Batch(spec())
    running = batch.submit(prompt_tokens=100, max_tokens=50)
    waiting = batch.submit(prompt_tokens=100, max_tokens=50)
    batch.advance(STEP_S)
    batch.abort(running)
    batch.abort(waiting)
    batch.abort(waiting)

    assert batch.kv_ratio == 0.0
    assert not batch.running
    assert not batch.waiting
    assert batch.counters.aborted == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"slots": 0}, "slots is 0", id="no slots"),
        pytest.param({"kv_tokens": 16}, "two blocks", id="one block"),
        pytest.param({"tokens_per_s": 0}, "tokens_per_s is 0", id="no speed"),
        pytest.param({"prefill_tokens_per_s": float("nan")}, "is nan", id="not a number"),
    ],
)
def test_impossible_sizes_are_refused_with_their_value(changes, text):
    with pytest.raises(ValueError, match=text):
        spec(**changes)


def test_a_histogram_counts_up_to_and_including_each_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)

    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 10.0


requests = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 80), st.integers(0, 5)), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(requests=requests, slots=st.integers(1, 8))
def test_memory_is_never_lost_and_everyone_is_served_whatever_arrives(requests, slots):
    batch = Batch(spec(slots=slots, tokens_per_s=100.0))
    sequences = []
    for prompt_tokens, max_tokens, pause in requests:
        if prompt_tokens < batch.spec.longest:
            sequences.append(batch.submit(prompt_tokens=prompt_tokens, max_tokens=max_tokens))
        for _ in range(pause):
            batch.advance(STEP_S)
            held = sum(each.blocks for each in batch.running)
            assert held + batch.free_blocks == batch.spec.blocks
            assert all(each.blocks == 0 for each in batch.waiting)
            assert len(batch.running) <= slots
    run_until_idle(batch)

    assert all(each.is_complete for each in sequences)
    assert batch.free_blocks == batch.spec.blocks
    assert batch.counters.generation_tokens == sum(each.max_tokens for each in sequences)
