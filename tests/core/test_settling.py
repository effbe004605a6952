"""Quiet samples: taken in at once, decided upon together, within a bounded time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.brain import Brain, gpu, model, sample, small_fleet, tier, topology
from xds_server.core.model import InstanceId
from xds_server.core.policy import Policy, TelemetryPolicy, WeightPolicy
from xds_server.core.sample import EngineState, GpuHealth

ALL = ("a", "b", "c", "f")
SETTLE_S = WeightPolicy().settle_s


def steady(policy=None) -> Brain:
    """A fleet whose last samples were decided upon."""
    brain = Brain(small_fleet(), policy)
    brain.run(ALL, until=60.0)
    brain.until(60.5)
    return brain


def decided(brain):
    return brain.state.models[0].steps


def test_a_quiet_sample_is_taken_in_at_once_and_decided_upon_a_little_later():
    brain = steady()
    before = decided(brain)
    brain.feed(sample("a", 60.9, kv_ratio=0.405), at=61.0)
    assert brain.state.instance(InstanceId("a")).pressure == 0.405
    assert decided(brain) is before
    assert 61.0 < brain.plan.next_deadline <= 61.0 + SETTLE_S
    brain.until(61.0 + SETTLE_S)
    assert decided(brain)[0].pressure == pytest.approx((0.405 + 0.4 + 0.4) / 3)


def test_later_quiet_samples_do_not_put_the_decision_off():
    brain = steady()
    brain.feed(sample("a", 61.0, kv_ratio=0.395), at=61.0)
    due = brain.plan.next_deadline
    for number, name in enumerate("bcf", 1):
        at = 61.0 + (due - 61.0) * number / 4
        brain.feed(sample(name, at, kv_ratio=0.395), at=at)
        assert brain.plan.next_deadline == due


def test_models_that_were_decided_upon_together_drift_apart():
    """Else all of a large fleet would be decided upon in one evaluation, and samples would wait."""
    names = [f"m{number}" for number in range(200)]
    brain = Brain(topology(*[model(name, tier("primary", f"i-{name}")) for name in names]))
    for at in (1.0, 2.0, 3.0):
        brain.feed(*[sample(f"i-{name}", at) for name in names], at=at)
    brain.until(3.9)
    brain.feed(*[sample(f"i-{name}", 4.0) for name in names], at=4.0)
    dues = sorted(state.deadline for state in brain.state.models)
    assert 4.0 + SETTLE_S / 2 < dues[0] < dues[-1] <= 4.0 + SETTLE_S
    most = max(sum(due <= other < due + SETTLE_S / 20 for other in dues) for due in dues)
    assert most < 60, "of 200, within a tenth of the time"


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"kv_ratio": 0.42}, id="its pressure moved"),
        pytest.param({"waiting": 1.0}, id="a queue"),
        pytest.param({"restarts": 1}, id="a restart"),
        pytest.param({"state": EngineState.DOWN}, id="down"),
        pytest.param({"draining": True}, id="a drain"),
        pytest.param({"gpu": gpu(GpuHealth.THROTTLED)}, id="a throttled GPU"),
        pytest.param({"gpu": gpu(free=1)}, id="memory is short"),
    ],
)
def test_whatever_may_matter_is_decided_upon_at_once(facts):
    brain = steady()
    before = decided(brain)
    brain.feed(sample("a", 61.0, **facts), at=61.0)
    assert decided(brain)[0] is not before[0]


def test_a_changed_number_of_slots_is_decided_upon_at_once():
    brain = Brain(topology(model("chat", tier("primary", "a", "b", capacities=[None, 40.0]))))
    brain.run("ab", until=60.0, slots=40.0)
    brain.until(60.5)
    brain.feed(sample("a", 61.0, slots=20.0), at=61.0)
    assert brain.weights() == {"a": 667, "b": 1333}


def test_a_pressure_that_becomes_known_is_decided_upon_at_once():
    brain = Brain(small_fleet())
    nothing = {"kv_ratio": None, "running": None, "waiting": None}
    brain.run(ALL, until=60.0, **nothing)
    before = decided(brain)
    brain.feed(sample("a", 60.1, **nothing), at=60.1)
    assert decided(brain) is before
    brain.feed(sample("a", 60.2, kv_ratio=0.4), at=60.2)
    assert decided(brain)[0].pressure == 0.4


def test_a_tier_that_nothing_happened_to_is_not_weighed_again():
    brain = steady()
    primary, fallback, static = decided(brain)
    brain.feed(sample("f", 61.0, kv_ratio=0.6), at=61.0)
    after = decided(brain)
    assert after[0] is primary
    assert after[1] is not fallback
    assert after[2] is static


def test_small_moves_count_from_what_was_last_decided_upon():
    brain = steady()
    before = decided(brain)
    brain.feed(sample("a", 61.0, kv_ratio=0.408), at=61.0)
    assert decided(brain) is before
    brain.feed(sample("a", 61.1, kv_ratio=0.416), at=61.1)
    assert decided(brain) is not before, "0.016 altogether"


def test_a_loud_sample_decides_upon_the_quiet_ones_before_it():
    brain = steady()
    brain.feed(sample("f", 61.0, kv_ratio=0.409), at=61.0)
    brain.feed(sample("a", 61.1, kv_ratio=0.7), at=61.1)
    assert decided(brain)[1].pressure == 0.409


@pytest.mark.parametrize("settle_s", [0.0, 1e-20], ids=["none", "less than the clock can tell"])
def test_without_a_time_to_settle_every_sample_is_decided_upon_at_once(settle_s):
    policy = Policy(weights=WeightPolicy(settle_s=settle_s))
    brain = steady(policy)
    one = sample("a", 61.0, kv_ratio=0.401)
    brain.feed(one, at=61.0)
    assert decided(brain)[0].pressure == pytest.approx((0.401 + 0.4 + 0.4) / 3)
    before = brain.state.models[0]
    brain.feed(one, at=61.0)
    assert brain.state.models[0] is before


def test_telemetry_that_ages_faster_than_it_settles_is_not_overlooked():
    policy = Policy(telemetry=TelemetryPolicy(interval_s=0.02))
    brain = Brain(small_fleet(), policy)
    brain.run(ALL, until=1.0, every=0.02)
    brain.feed(sample("a", 1.01), at=1.01)
    assert brain.plan.next_deadline <= 1.06
    brain.until(1.5)
    assert [at for at, e in brain.named("telemetry_stale") if e.instance == "a"] == [
        pytest.approx(1.07)
    ]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 0.2), st.sampled_from(ALL), st.floats(0.3, 0.5)), max_size=40)
)
def test_once_settled_the_pressures_and_weights_are_those_of_a_brain_that_never_waits(moves):
    """Levels and the spill have a history; what is weighed from the last samples has none."""
    patient = steady()
    prompt = steady(Policy(weights=replace(WeightPolicy(), settle_s=0.0)))
    for gap, name, kv_ratio in moves:
        at = patient.now + gap
        for brain in (patient, prompt):
            brain.feed(sample(name, at, kv_ratio=kv_ratio), at=at)
    end = patient.now + SETTLE_S
    for brain in (patient, prompt):
        brain.until(end)
    for waited, at_once in zip(decided(patient), decided(prompt), strict=True):
        assert waited.pressure == at_once.pressure
        assert waited.weights == at_once.weights


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.4), st.sampled_from(ALL), st.floats(-0.03, 0.03)), max_size=40
    )
)
def test_nothing_waits_for_longer_than_the_time_to_settle(moves):
    brain = steady()
    for gap, name, move in moves:
        at = brain.now + gap
        brain.feed(sample(name, at, kv_ratio=0.4 + move), at=at)
        state = brain.state.models[0]
        if any(t is not s.state for t, s in zip(state.tiers, state.steps, strict=True)):
            assert at < brain.plan.next_deadline <= at + SETTLE_S


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"kv_ratio": 0.85}, id="a pressed tier"),
        pytest.param({"state": EngineState.DOWN}, id="a tier that passes everything on"),
    ],
)
def test_while_a_model_is_pressed_every_sample_is_decided_upon_at_once(facts):
    brain = steady()
    brain.feed(*[sample(name, 61.0, **facts) for name in "abc"], at=61.0)
    before = decided(brain)
    brain.feed(sample("f", 61.1, kv_ratio=0.401), at=61.1)
    assert decided(brain)[1] is not before[1]
    assert decided(brain)[1].pressure == pytest.approx(0.401)
