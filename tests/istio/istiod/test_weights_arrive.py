"""Our weights through a real istiod into the routes of a sidecar."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from tests.fakes.mesh_lab import HOST, TABLE, mesh_lab, split
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED

pytestmark = pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)
ARRIVES_S = 0.5


async def test_every_step_of_splits_and_of_the_ramp_arrives_within_half_a_second(tmp_path):
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        for step in ((50, 50), (0, 100), (10, 90), (30, 70), (100, 0), (90, 10), (60, 30, 10)):
            await asyncio.sleep(0.4)  # Steps of the ramp are held for seconds.
            lab.plan(*step)
            await watcher.until(split(*step), timeout_s=ARRIVES_S)


async def test_a_hundred_changes_in_twenty_seconds_leave_no_gap_above_a_second(tmp_path):
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        started = time.monotonic()
        for step in range(100):
            lab.plan(20 + step % 60, 80 - step % 60)
            await asyncio.sleep(max(0.0, started + 0.2 * (step + 1) - time.monotonic()))
        ended = time.monotonic()
        await watcher.until(split(20 + 99 % 60, 80 - 99 % 60), timeout_s=1.0)
        moved: list[float] = [started]
        last: dict[str, int] = {}
        for at, weights in watcher.log:
            if at > started and weights != last:
                moved.append(at)
                last = weights
        moved = [at for at in moved if at <= ended]
        assert max(b - a for a, b in itertools.pairwise(moved)) < 1.0
        assert len(moved) > 60, "four a second are told"


async def test_a_storm_settles_within_a_second_and_costs_few_pushes(tmp_path):
    """istio#25685: changes in less than 100 ms postpone istiod's pushes for up to 10 s."""
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        before = len(watcher.log)
        for step in range(50):
            lab.plan(30 + step, 70 - step)
            await asyncio.sleep(0.1)
        await watcher.until(split(79, 21), timeout_s=1.0)
        assert len(watcher.log) - before <= 25


async def test_a_version_that_istiod_has_is_not_pushed_again_after_our_restart(tmp_path):
    """istio#31775: the restart of a config source leaves no hole and moves nothing."""
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        await lab.kill()
        await lab.serve()
        lab.plan(90, 10)
        before = len(watcher.log)

        await asyncio.wait_for(_connected(lab), 15)
        await asyncio.sleep(1.0)
        assert watcher.log[before:] == []
        assert watcher.weights(HOST, TABLE) == split(90, 10)


async def test_killed_and_back_the_mesh_keeps_its_weights_and_then_follows(tmp_path):
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        await lab.kill()
        await asyncio.sleep(3)
        assert await lab.istiod.is_ready()
        async with lab.watching("client-1") as newcomer:
            await newcomer.until(split(90, 10), timeout_s=2)
        await lab.serve()
        lab.plan(40, 60)
        await watcher.until(split(40, 60), timeout_s=10)
        assert {str(each) for _, each in watcher.log} <= {str(split(90, 10)), str(split(40, 60))}


async def _connected(lab) -> None:
    while not lab.ours.source.server.streams:
        await asyncio.sleep(0.02)
