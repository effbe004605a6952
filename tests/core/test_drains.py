"""Who wants an instance empty, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.tracked import DOWN, Instance, at
from xds_server.core import faults
from xds_server.core.plan import FaultState
from xds_server.core.track import Track


def test_a_drain_takes_everything_and_its_end_ramps():
    one = Instance()
    one.see()
    one.see(draining=True)
    assert (one.track.state, one.track.cause, one.ceiling) == (
        FaultState.DRAINING,
        "agent_drain",
        0.0,
    )
    one.stay(100, draining=True)
    one.see()
    assert (one.track.state, one.track.cause, one.ceiling) == (
        FaultState.RECOVERING,
        "undrained",
        0.10,
    )


def test_an_operator_drain_survives_what_the_agent_says():
    one = Instance()
    one.see()
    one.track = faults.drain(one.track, at(2.0), who="ann: new driver")
    assert one.track.detail == "ann: new driver"
    assert faults.drain(one.track, at(2.0), who="ann: new driver") is one.track
    one.stay(50)
    assert one.track.state is FaultState.DRAINING
    one.track = faults.drain(one.track, at(60.0), who=None)
    assert one.track.state is FaultState.RECOVERING


@pytest.mark.parametrize(
    ("orders", "cause", "detail"),
    [
        pytest.param(["agent", "ann"], "operator_drain", "ann", id="operator-joins"),
        pytest.param(["ann", "agent"], "operator_drain", "ann", id="agent-joins"),
        pytest.param(["agent", "ann", "no-agent"], "operator_drain", "ann", id="agent-ends"),
        pytest.param(["ann", "agent", None], "agent_drain", "", id="operator-ends"),
        pytest.param(["ann", "bob: disk"], "operator_drain", "bob: disk", id="another-operator"),
        pytest.param(["agent", "ann", None], "agent_drain", "", id="operator-only-passed-by"),
    ],
)
def test_a_drain_is_ascribed_to_who_wants_it_now(orders, cause, detail):
    one = Instance()
    one.see()
    drains = False
    for order in orders:
        if order in ("agent", "no-agent"):
            drains = order == "agent"
        else:
            one.track = faults.drain(one.track, at(one.now), who=order)
        one.see(draining=drains)
    began = one.track.since
    assert (one.track.state, one.track.cause, one.track.detail) == (
        FaultState.DRAINING,
        cause,
        detail,
    )
    assert one.stay(5, draining=drains).since == began


def test_a_drained_engine_may_end_without_counting_and_comes_back_drained():
    one = Instance()
    one.see()
    one.track = faults.drain(one.track, at(2.0), who="ann")
    one.see(state=DOWN)
    assert (one.track.state, one.track.faults) == (FaultState.DOWN, ())
    one.see(restarts=1)
    assert one.track.state is FaultState.DRAINING


def test_a_drain_during_a_quarantine_outlives_it():
    one = Instance()
    one.see(restarts=0)
    one.see(restarts=3)
    one.track = faults.drain(one.track, at(one.now), who="ann")
    assert one.track.state is FaultState.QUARANTINED
    one.stay(301, restarts=3)
    assert one.track.state is FaultState.DRAINING


def test_a_track_knows_whether_it_is_drained():
    track = Track(state=FaultState.HEALTHY, cause="", detail="", since=0.0)
    assert not track.is_drained
    assert replace(track, agent_drains=True).is_drained
    assert replace(track, operator="ann").is_drained
