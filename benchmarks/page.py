"""The live page in a real Chromium: 200 instances and 500 proxies, a fifth of which change four times a second.

`seen_ms` is from a change in the control plane until the page shows it. `main_thread_share` is the part of the time in
which the page's main thread worked (the browser's own `TaskDuration`), `frame_ms` the time between two frames, 16.7 ms
where nothing is missed, and `held_up_ms` how long the server's event loop was held up at worst. `quiet` is the
same page while only ages move. Browser, server and driver share the machine's cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

from tests.fakes.browser import a_browser, a_page
from tests.fakes.live_stage import LiveStage, a_model, a_proxy, an_instance
from xds_server.xds.syncz import SyncState

MODELS, EACH, PROXIES = 5, 39, 500
MOVE_S = 0.25
PART = 5
"""One in so many moves each time."""
FRAMES = """(ms) => new Promise((done) => {
    const found = []; let last = performance.now(); const end = last + ms;
    const frame = (now) => { found.push(now - last); last = now; now < end ? requestAnimationFrame(frame) : done(found.slice(1)); };
    requestAnimationFrame(frame);
})"""
SEEN = """(text) => new Promise((done) => {
    const node = document.querySelector(".tierhead .share");
    const look = () => node.textContent === text && (observer.disconnect(), done());
    const observer = new MutationObserver(look);
    observer.observe(node, { childList: true, characterData: true, subtree: true }); look();
})"""


def _of_rank(values: list[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 1)


class Fleet:
    """Moves what the page shows."""

    def __init__(self, stage: LiveStage) -> None:
        self.stage = stage
        self.turn = 0
        stage.models = [a_model(name=f"chat{index}", many=EACH) for index in range(MODELS)]
        stage.proxies = [a_proxy(f"edge-{index:03}") for index in range(PROXIES)]

    async def move(self) -> None:
        """Change a part of everything, again and again."""
        while True:
            self.turn += 1
            self.stage.models = [
                dataclasses.replace(model, tiers=(self._moved(model.tiers[0]), *model.tiers[1:]))
                for model in self.stage.models
            ]
            for index in range(self.turn % PART, PROXIES, PART):
                state = SyncState.STALE if self.turn // PART % 2 else SyncState.SYNCED
                self.stage.proxies[index] = a_proxy(f"edge-{index:03}", state)
            await asyncio.sleep(MOVE_S)

    def _moved(self, tier: Any) -> Any:
        pressure = 0.2 + self.turn % 50 / 100
        instances = [
            an_instance(each.id, pressure=pressure, weight=900 + self.turn % 100)
            if index % PART == self.turn % PART
            else each
            for index, each in enumerate(tier.instances)
        ]
        return dataclasses.replace(tier, instances=tuple(instances), pressure=pressure)

    async def tell(self, weight: int) -> None:
        """Give the first model another weight."""
        first = self.stage.models[0]
        tier = dataclasses.replace(first.tiers[0], weight=weight)
        self.stage.models[0] = dataclasses.replace(first, tiers=(tier, *first.tiers[1:]))


class HeldUp:
    """How long the event loop was held up at worst."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            self.worst_s = max(self.worst_s, time.monotonic() - began - 0.005)


@contextlib.asynccontextmanager
async def background(*work: Any) -> AsyncIterator[None]:
    """Run this for as long as the block lasts."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(page: Any, seconds: float) -> dict[str, float]:
    """Look at the page for a while."""
    session = await page.context.new_cdp_session(page)
    # CPU of the thread, not time on the clock: other processes share the cores.
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def busy() -> float:
        found = (await session.send("Performance.getMetrics"))["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == "TaskDuration")

    held_up = HeldUp()
    before, began = await busy(), time.monotonic()
    async with background(held_up.watch()):
        frames = await page.evaluate(FRAMES, 1000 * seconds)
    spent = await busy() - before
    return {
        "main_thread_share": round(spent / (time.monotonic() - began), 3),
        "frame_ms_p50": _of_rank(frames, 0.5),
        "frame_ms_p99": _of_rank(frames, 0.99),
        "frame_ms_worst": round(max(frames), 1),
        "frames_over_50_ms": sum(each > 50 for each in frames),
        "held_up_ms": round(1000 * held_up.worst_s, 1),
    }


async def _seen(page: Any, fleet: Fleet, times: int) -> dict[str, float]:
    found = []
    for number in range(times):
        weight = 100 + number
        waiting = asyncio.create_task(page.evaluate(SEEN, f"{weight / 10:.1f} %"))
        await asyncio.sleep(0.37)  # every phase of the stream's rhythm
        began = time.monotonic()
        await fleet.tell(weight)
        await waiting
        found.append(1000 * (time.monotonic() - began))
    return {
        "seen_ms_p50": _of_rank(found, 0.5),
        "seen_ms_worst": round(max(found), 1),
        "changes": times,
    }


async def _run(*, quick: bool) -> dict[str, Any]:
    seconds, times = (3.0, 5) if quick else (20.0, 40)
    fleet = Fleet(LiveStage())
    async with (
        fleet.stage.serving() as stage,
        a_browser() as browser,
        a_page(browser, stage.url, viewport={"width": 1360, "height": 900}) as page,
    ):
        quiet = await measure(page, seconds / 2)
        async with background(fleet.move()):
            moving = await measure(page, seconds)
            seen = await _seen(page, fleet, times)
    return {
        "instances": MODELS * (EACH + 1),
        "proxies": PROXIES,
        "quiet": quiet,
        "moving": {**moving, **seen},
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure; see the module."""
    return asyncio.run(_run(quick=quick))
