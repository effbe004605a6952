from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.backoff import BASE_S, CAP_S, LIVED_S, Backoff
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.lifecycle import Engine
from sidecar_agent.gpu.facts import GpuHealth
from sidecar_agent.gpu.reduce import GpuGroup
from sidecar_agent.join import Sample, join
from sidecar_agent.slots import Slots, moved

CALM = EngineFacts(state=EngineState.UP, kv_ratio=0.50, waiting=0.0, running=2.0)


def sample(at=0.0, sequence=1, instance="a", **more):
    facts = more.pop("engine", CALM)
    return Sample(instance=instance, observed_at=at, sequence=sequence, engine=facts, **more)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"engine": replace(CALM, kv_ratio=0.505)}, False),
        ({"engine": replace(CALM, kv_ratio=0.51)}, True),
        ({"engine": replace(CALM, kv_ratio=0.49)}, True),
        ({"engine": replace(CALM, kv_ratio=None)}, True),
        ({"engine": replace(CALM, waiting=1.0)}, True),
        ({"engine": replace(CALM, running=3.0)}, True),
        ({"engine": replace(CALM, state=EngineState.HUNG)}, True),
        ({"engine": replace(CALM, generation_tokens_total=9.0)}, False),
        ({"draining": True}, True),
        ({"restarts": 1}, True),
        ({"out_of_memory": True}, True),
        ({"gpu": GpuGroup(health=GpuHealth.LOST)}, True),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_counts_as_moved(change, expected):
    assert moved(sample(), sample(at=1.0, sequence=2, **change)) is expected


def test_the_first_sample_goes_at_once_and_calm_ones_once_per_interval():
    slots = Slots(interval_s=1.0)
    sent = []
    for tick in range(41):
        now = tick * 0.1
        slots.offer(sample(at=now, sequence=tick))
        sent += [(round(now, 1), one.sequence) for one in slots.take(now)]
    assert [at for at, _ in sent] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [sequence for _, sequence in sent] == [0, 10, 20, 30, 40], "the newest, not the oldest"


def test_a_move_does_not_wait_for_the_interval():
    slots = Slots(interval_s=1.0)
    assert slots.offer(sample(at=0.0))
    slots.take(0.0)
    assert not slots.offer(sample(at=0.1, sequence=2))
    assert slots.take(0.1) == []
    assert slots.next_due() == 1.0
    assert slots.offer(sample(at=0.2, sequence=3, engine=replace(CALM, waiting=5.0)))
    assert [one.sequence for one in slots.take(0.2)] == [3]


def test_slow_drift_is_compared_with_what_was_sent_and_not_with_the_last_reading():
    slots = Slots(interval_s=100.0)
    slots.offer(sample())
    slots.take(0.0)
    sent = 0
    for step in range(1, 21):
        slots.offer(
            sample(at=step, sequence=step, engine=replace(CALM, kv_ratio=0.5 + step / 1000))
        )
        sent += len(slots.take(float(step)))
    assert sent == 2


def test_newer_samples_replace_older_ones_while_nothing_can_be_sent():
    slots = Slots(interval_s=1.0)
    for n in range(5):
        slots.offer(sample(at=n / 10, sequence=n, engine=replace(CALM, waiting=float(n))))
    assert [one.sequence for one in slots.take(0.5)] == [4]
    assert slots.superseded == 4
    assert slots.take(0.6) == []
    assert slots.next_due() == math.inf


def test_old_samples_are_dropped_and_counted_instead_of_replayed():
    slots = Slots(interval_s=1.0)
    slots.offer(sample(at=0.0))
    assert slots.take(3.1) == []
    assert slots.expired == 1
    assert slots.take(3.2) == []


@pytest.mark.parametrize("interval_s", [0.25, 1.0, 8.0])
def test_three_intervals_are_the_age_up_to_which_a_sample_is_sent(interval_s):
    slots = Slots(interval_s=interval_s)
    slots.offer(sample(at=10.0))
    assert len(slots.take(10.0 + 3 * interval_s)) == 1
    slots.offer(sample(at=20.0, sequence=2, draining=True))
    assert slots.take(20.0 + 3.1 * interval_s) == []
    assert slots.expired == 1


def test_a_new_stream_starts_with_everything_that_is_fresh():
    slots = Slots(interval_s=100.0)
    for instance in ("a", "b"):
        slots.offer(sample(instance=instance))
    slots.take(0.0)
    slots.offer(sample(at=1.0, sequence=2))
    assert slots.take(1.0) == []
    slots.forget_sent()
    assert [(one.instance, one.sequence) for one in slots.take(1.0)] == [("a", 2)]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40))
def test_what_is_taken_is_always_the_newest_of_its_instance(steps):
    slots = Slots(interval_s=0.5)
    newest, taken = 0, 0
    for number, (ratio, take) in enumerate(steps, start=1):
        now = number * 0.1
        slots.offer(sample(at=now, sequence=number, engine=replace(CALM, kv_ratio=ratio)))
        newest = number
        if take:
            for one in slots.take(now):
                assert one.sequence == newest > taken
                taken = one.sequence


def test_backoff_doubles_up_to_its_cap_with_full_jitter():
    class Top(random.Random):
        def uniform(self, a, b):
            assert a == 0.0
            return b

    backoff = Backoff(Top())
    delays = [backoff.ended(0.0) for _ in range(7)]
    assert delays == [BASE_S, 1.0, 2.0, 4.0, 8.0, CAP_S, CAP_S]
    assert backoff.ended(LIVED_S - 0.1) == CAP_S, "a short stream proves nothing"
    assert backoff.ended(LIVED_S) == BASE_S


@given(st.integers(0, 2**32), st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_backoff_stays_within_its_bounds(seed, lives):
    backoff = Backoff(random.Random(seed))
    for lived in lives:
        assert 0.0 <= backoff.ended(lived) <= CAP_S


@pytest.mark.parametrize(
    ("gpu", "draining", "published"),
    [
        (None, False, False),
        (GpuGroup(health=GpuHealth.OK), False, False),
        (GpuGroup(health=GpuHealth.LOST), False, True),
        (GpuGroup(health=GpuHealth.RESET_REQUIRED), False, True),
        (None, True, True),
    ],
    ids=["nothing", "healthy GPU", "lost GPU", "reset required", "draining"],
)
def test_a_failed_read_publishes_nothing_but_faults_and_drains(gpu, draining, published):
    joined = join(
        Engine(facts=None), gpu, instance="a", observed_at=1.0, sequence=1, draining=draining
    )
    assert (joined is not None) is published
    if joined is not None:
        assert joined.engine == EngineFacts(), "no engine fact is made up"


def test_a_sample_carries_restarts_and_exhaustion():
    engine = Engine(facts=EngineFacts(state=EngineState.DOWN), exhausted="KV cache full")
    joined = join(engine, None, instance="a", observed_at=1.0, sequence=7, draining=False)
    assert joined is not None
    assert (joined.out_of_memory, joined.restarts, joined.sequence) == (True, 0, 7)
