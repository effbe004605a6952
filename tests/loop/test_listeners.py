"""Who hears plans."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.loop.test_control_loop import Rig
from xds_server.config.load import load_file
from xds_server.core.inputs import Drain


def rig() -> Rig:
    from tests.fakes.xds_process import ROOT

    return Rig(load_file(ROOT / "tests/config/design.yaml").topology)


async def test_everybody_who_subscribed_hears_every_plan():
    it, first, second = rig(), [], []
    it.loop.subscribe(first.append)
    it.loop.subscribe(second.append)
    await it.loop.prepare()
    it.loop.step()
    assert first == second == [it.loop.fleet.plan]


async def test_a_listener_that_fails_is_nobody_elses_trouble():
    it, heard = rig(), []

    def fail(_plan):
        raise ZeroDivisionError

    it.loop.subscribe(fail)
    it.loop.subscribe(heard.append)
    await it.loop.prepare()
    with capture_logs() as lines:
        it.loop.step()
    assert len(heard) == 1
    assert [each["event"] for each in lines if each["log_level"] == "error"] == [
        "plan_listener_failed"
    ]
    assert it.tally.count("fleet_control_loop_errors_total", "listener") == 1


async def test_proxies_are_served_before_anybody_is_told_why(monkeypatch):
    # A thousand events, or a listener that thinks long, must not stand in front of the push that helps.
    it, order = rig(), []
    it.published = order
    it.loop.on_event = order.append
    it.loop.subscribe(order.append)
    await it.loop.prepare()
    it.loop.warm_up()
    instance = next(each.id for _, _, each in it.loop.fleet.topology.instances())
    it.loop.drain(Drain(instance=instance, draining=True, who="ana", why="new driver"))
    it.loop.step()
    kinds = [type(each).__name__ for each in order]
    assert kinds == ["tuple", *["Event"] * (len(order) - 2), "Plan"]
    assert "Event" in kinds


async def test_what_was_decided_is_told_also_when_somebody_who_hears_of_the_push_fails():
    it, told = rig(), []

    def fail(_drained):
        raise ZeroDivisionError

    it.loop.on_published = fail
    it.loop.on_event = told.append
    it.loop.subscribe(told.append)
    await it.loop.prepare()
    it.loop.warm_up()
    instance = next(each.id for _, _, each in it.loop.fleet.topology.instances())
    it.loop.drain(Drain(instance=instance, draining=True, who="ana", why="new driver"))
    with pytest.raises(ZeroDivisionError):
        it.loop.step()
    assert [type(each).__name__ for each in told] == ["Event"] * (len(told) - 1) + ["Plan"]
    assert len(told) > 1


async def test_the_time_of_an_evaluation_is_that_of_the_decision_alone():
    it = rig()
    it.loop.subscribe(lambda _: it.clock.advance(5.0))
    await it.loop.prepare()
    it.loop.warm_up()
    it.loop.step()
    assert it.tally.histograms["fleet_evaluation_seconds"][-1] == 0.0  # their sum
