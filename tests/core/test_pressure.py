from __future__ import annotations

from math import inf

import pytest

from tests.fakes.brain import sample
from xds_server.core import pressure
from xds_server.core.policy import WeightPolicy

POLICY = WeightPolicy(waiting_scale_ratio=0.25)


def read(engine, held=None, *, slots=40.0, now=0.0):
    return pressure.read(engine, held, slots=slots, policy=POLICY, blind_after_s=30.0, now=now)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({"kv_ratio": 0.5, "waiting": 0.0}, 0.5, id="no queue"),
        pytest.param({"kv_ratio": 0.5, "waiting": 5.0}, 1.0, id="half a queue"),
        pytest.param({"kv_ratio": 0.5, "waiting": 500.0}, 1.5, id="a queue counts at most 1"),
        pytest.param({"kv_ratio": 0.84, "waiting": 8.0}, 1.64, id="SGLang queues at 0.84"),
        pytest.param({"kv_ratio": 0.0, "waiting": 0.0}, 0.0, id="idle"),
    ],
)
def test_pressure_is_kv_usage_plus_queue(facts, expected):
    assert read(sample("a", 0.0, **facts).engine) == pytest.approx(expected)


class Readings:
    def __init__(self):
        self.previous = self.held = None

    def see(self, at, **facts):
        one = sample("a", at, **facts)
        self.held = pressure.carry(self.held, self.previous, one)
        self.previous = one
        return read(one.engine, self.held, now=at)


def test_a_complete_sample_needs_nothing_carried():
    readings = Readings()
    readings.see(0.0)
    assert readings.held is None
    assert pressure.deadline(None, 30.0, 0.0) == inf


def test_a_vanished_kv_series_is_not_read_as_idle():
    """llm-d-autoscaling#360: one scrape without the series must not make a full engine attractive."""
    readings = Readings()
    assert readings.see(0.0, kv_ratio=0.9) == 0.9
    assert readings.see(1.0, kv_ratio=None) == 0.9
    assert readings.see(2.0, kv_ratio=None) == 0.9
    assert readings.see(3.0, kv_ratio=0.2) == 0.2


def test_a_number_lost_for_too_long_is_unknown():
    readings = Readings()
    readings.see(0.0, kv_ratio=0.9)
    readings.see(1.0, kv_ratio=None)
    assert pressure.deadline(readings.held, 30.0, 1.0) == 30.0
    assert readings.see(29.0, kv_ratio=None) == 0.9
    assert readings.see(30.0, kv_ratio=None) is None
    assert readings.see(31.0, kv_ratio=0.1) == 0.1


def test_a_vanished_queue_is_carried_and_then_unknown():
    readings = Readings()
    readings.see(0.0, kv_ratio=0.5, waiting=5.0)
    assert readings.see(1.0, kv_ratio=0.5, waiting=None) == 1.0
    assert readings.see(31.0, kv_ratio=0.5, waiting=None) is None


def test_an_engine_without_kv_usage_is_judged_by_its_slots():
    readings = Readings()
    assert readings.see(0.0, kv_ratio=None, running=20.0) == 0.5
    assert readings.see(1.0, kv_ratio=None, running=80.0, waiting=5.0) == 1.5
    assert readings.see(2.0, kv_ratio=None, running=None, waiting=0.0) == 1.0


def test_an_engine_that_says_nothing_about_its_load_is_unknown():
    assert Readings().see(0.0, kv_ratio=None, running=None, waiting=3.0) is None


def test_running_requests_of_long_ago_are_unknown():
    readings = Readings()
    readings.see(0.0, kv_ratio=None, running=20.0)
    assert readings.see(31.0, kv_ratio=None, running=None) is None


def test_an_engine_without_a_queue_metric_is_judged_by_its_usage():
    readings = Readings()
    assert readings.see(0.0, waiting=None, kv_ratio=0.3) == 0.3
    assert readings.see(99.0, waiting=None, kv_ratio=0.4) == 0.4


def test_a_restart_forgets_what_was_carried():
    readings = Readings()
    readings.see(0.0, kv_ratio=0.9)
    assert readings.see(1.0, kv_ratio=None, running=4.0, restarts=1) == 0.1
