from __future__ import annotations

import pytest

from tests.fakes.brain import gpu, sample, small_fleet
from xds_server.core.plan import Reason
from xds_server.core.sample import EngineState, GpuHealth


def test_a_topology_lists_its_instances_in_order():
    listed = [(m.name, t.name, i.id) for m, t, i in small_fleet().instances()]
    assert listed == [
        ("chat", "primary", "a"),
        ("chat", "primary", "b"),
        ("chat", "primary", "c"),
        ("chat", "fallback", "f"),
    ]


@pytest.mark.parametrize(
    ("facts", "urgent"),
    [
        ({}, False),
        ({"state": EngineState.LOADING}, False),
        ({"state": EngineState.DOWN}, True),
        ({"state": EngineState.HUNG}, True),
        ({"draining": True}, True),
        ({"gpu": gpu(GpuHealth.LOST)}, True),
        ({"gpu": gpu(GpuHealth.THROTTLED)}, False),
    ],
)
def test_faults_and_drains_do_not_wait_for_the_throttle(facts, urgent):
    assert sample("a", 0.0, **facts).urgent is urgent


def test_reasons_compare_by_value():
    one = Reason(rule="r", text="t.", inputs={"x": 1.0})
    assert one == Reason(rule="r", text="t.", inputs={"x": 1.0})
    assert one != Reason(rule="r", text="t.", inputs={"x": 2.0})
