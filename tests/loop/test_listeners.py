"""Who hears plans."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.loop.test_control_loop import Rig
from xds_server.config.load import load_file


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
