"""Plays the incident: normal, overload, spill, a death, static answers, recovery."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from demo import view
from demo.children import Children
from demo.load import LoadGenerator
from demo.outcome import Death, Kind, Outcome, Verdict
from demo.play import (
    ACTS,
    FALLBACK,
    FALLBACK_MODEL,
    PRIMARY,
    PRIMARY_MODEL,
    STATIC,
    VICTIM,
    Act,
    paced,
)
from demo.report import Phase, effect_table, outcome_table, rows, tier_of
from demo.scene import Scene
from demo.stage import Stage, build, envoy_binary
from demo.story import Marks, effects
from demo.watch import Farewell, Watch

TIERS = {PRIMARY_MODEL: PRIMARY, FALLBACK_MODEL: FALLBACK}
"""Tier of each model that answers; the static answer's model is called like its tier."""
PROTOCOLS = {"sotw": "state of the world", "delta": "delta"}
DRAIN_S = 12.0
"""How long answers may take that are under way when the play ends."""
NARRATE_S = 0.1
DEAD_WATCH_S = 2.0
"""How long the proxies are watched for attempts to reach the dead instance."""


class Incident:
    """One performance."""

    def __init__(
        self, stage: Stage, scene: Scene, load: LoadGenerator, acts: Sequence[Act]
    ) -> None:
        self._stage = stage
        self._scene = scene
        self._load = load
        self._acts = acts
        self.phases: list[Phase] = []
        """The acts that were played, with their times."""
        self.farewell: Farewell | None = None
        """How the proxies let go of the victim."""
        self._back_s: float | None = None
        self._whole_s: float | None = None
        self._levels: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._seen: set[str] = set()

    async def play(self) -> None:
        """Play every act, then wait for the answers that are under way."""
        async with asyncio.TaskGroup() as group:
            narrator = group.create_task(self._narrate(), name="narrator")
            deaths = []
            for act in self._acts:
                self._begin(act)
                if act.kills:
                    deaths.append(group.create_task(self._kill(), name="death"))
                await asyncio.sleep(act.seconds)
                self._end(act)
            self._load.rate = 0.0
            deadline = time.monotonic() + DRAIN_S
            while self._load.in_flight and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            if deaths:
                await asyncio.wait(deaths)
            narrator.cancel()

    def _begin(self, act: Act) -> None:
        self._scene.act, self._scene.act_started_s = act, time.monotonic()
        self._load.rate = act.rate
        self._scene.say(f"{act.name.upper()}, {act.rate:g} requests/s: {act.says}")

    def _end(self, act: Act) -> None:
        self.phases.append(
            Phase(name=act.name, start_s=self._scene.act_started_s, end_s=time.monotonic())
        )

    async def _kill(self) -> None:
        answer = await self._scene.watch.order(VICTIM, "oom")
        death = Death(engine=VICTIM, at_s=answer["at_s"])
        self._scene.deaths.append(death)
        self._scene.say(f"{VICTIM} ran out of memory: its process is gone")
        self.farewell = await self._scene.watch.farewell(
            self._stage.addresses[VICTIM], since_s=death.at_s, seconds=DEAD_WATCH_S
        )
        if (told_s := self.farewell.told_after_s) is not None:
            self._scene.say(
                f"{told_s * 1000:.0f} ms after its death the control plane had taken {VICTIM} away "
                f"from both Envoys"
            )

    async def _narrate(self) -> None:
        while True:
            await asyncio.sleep(NARRATE_S)
            self.narrate()

    def narrate(self) -> None:
        """Say what changed in the control plane's plan and who answered for the first time."""
        for tier in self._scene.watch.tiers:
            pressure = "" if tier.pressure is None else f"pressure {tier.pressure:.2f}"
            self._narrate_change(self._levels, f"tier {tier.name}", tier.level, pressure)
            for each in tier.instances:
                self._narrate_change(self._states, each.name, each.state, each.reason)
                if each.name == VICTIM:
                    self._follow_victim(each.state, each.ceiling)
        for outcome in self._scene.recent():
            tier_name = tier_of(outcome, TIERS)
            if outcome.status == 200 and tier_name not in self._seen:
                self._seen.add(tier_name)
                self._scene.say(f"first answer of the {tier_name} tier ({outcome.model})")

    def _narrate_change(self, known: dict[str, str], who: str, now: str, why: str) -> None:
        before = known.get(who)
        known[who] = now
        if before is not None and before != now:
            self._scene.say(f"{who}: {before} -> {now}" + (f" ({why})" if why else ""))

    def _follow_victim(self, state: str, ceiling: float | None) -> None:
        told = self._scene.watch.engines.get(VICTIM, {})
        # An engine may have died in an earlier play: only its return from this death counts.
        deaths = [
            each
            for each in told.get("deaths", ())
            if self._scene.deaths and each["at_s"] >= self._scene.deaths[0].at_s
        ]
        if self._back_s is None and deaths and "back_at_s" in deaths[-1]:
            self._back_s = float(deaths[-1]["back_at_s"])
            self._scene.say(f"{VICTIM} has reloaded and listens again")
        is_back = self._back_s is not None and self._whole_s is None
        if is_back and state == "healthy" and ceiling == 1.0:
            self._whole_s = time.monotonic()

    def report(self, console: Console) -> list[str]:
        """Print the tables and return what went wrong, one sentence each."""
        outcomes = self._scene.outcomes
        table_rows = rows(outcomes, self.phases, deaths=self._scene.deaths, tiers=TIERS)
        found = effects(outcomes, self._marks(), TIERS)
        # A live picture leaves nothing behind: tell the story once more.
        view.flush(self._scene, console)
        console.print()
        console.print(outcome_table(table_rows, (PRIMARY, FALLBACK, STATIC)))
        console.print()
        console.print(effect_table(found))
        console.print()
        for proxy, protocol in PROTOCOLS.items():
            mine = [each for each in outcomes if each.proxy == proxy]
            failed = sum(each.verdict(self._scene.deaths) is Verdict.FAILED for each in mine)
            _say(
                console,
                f"Through the Envoy that speaks {protocol}: {len(mine)} requests, {failed} failed.",
            )
        faults = [
            f"failed: {each.kind} request through {each.proxy} at "
            f"{each.started_s - self._scene.started_s:.1f} s: {each.error}"
            for each in outcomes
            if each.verdict(self._scene.deaths) is Verdict.FAILED
        ]
        faults += [
            f"never seen: {each.effect} (after: {each.cause})"
            for each in found
            if each.after_s is None
        ]
        return faults + self._missing(outcomes)

    def _marks(self) -> Marks:
        return Marks(
            acts={phase.name: phase.start_s for phase in self.phases},
            died_s=self._scene.deaths[0].at_s if self._scene.deaths else None,
            back_s=self._back_s,
            whole_s=self._whole_s,
            farewell=self.farewell,
        )

    def _missing(self, outcomes: Sequence[Outcome]) -> list[str]:
        missing = []
        if self._scene.deaths and self._back_s is None:
            missing.append(f"never seen: {VICTIM} serving again")
        missing += header_faults(outcomes)
        sent = {each.kind for each in outcomes}
        return missing + [f"never sent: a {kind} request" for kind in Kind if kind not in sent]


def header_faults(outcomes: Sequence[Outcome]) -> list[str]:
    """Say where a client was not told the truth about who answered."""
    faults = []
    for each in outcomes:
        if each.status != 200:
            continue
        is_lower = tier_of(each, TIERS) != PRIMARY
        if each.is_downgraded != is_lower or bool(each.reason) != is_lower:
            faults.append(
                f"headers: an answer of {each.model or 'nobody'} through {each.proxy} says "
                f"x-model-downgraded: {each.is_downgraded}, x-degrade-reason: {each.reason!r}"
            )
    return faults


async def perform(console: Console, *, seconds: float, keep: bool, stays: bool = False) -> int:
    """Build the stage, play, report, stay if asked. Return the exit code: 0 when clients saw no failure.

    Raises:
        DemoError: the stage cannot be built, or a process of it died.
    """
    envoy = envoy_binary()
    directory = Path(tempfile.mkdtemp(prefix="gpu-xds-demo-"))
    is_good = is_ended = False
    _say(console, "Starting three engines, their agents, the control plane and two Envoys ...")
    try:
        async with Children(directory) as children, aiohttp.ClientSession() as session:
            stage = await build(children, session, directory, envoy=envoy)
            _say(console, stage.gpu_note + ".")
            _say(console, f"Watch it in a browser, while it lasts: {stage.server}/")
            faults = await _perform_on(stage, children, session, console, seconds)
            if stays:
                _say(console, f"Look around: {stage.server}/ stays until Ctrl-C.")
                await _stay(stage, children)
        is_good = not faults
        for fault in faults[:20]:
            _say(console, fault)
        if len(faults) > 20:
            _say(console, f"... and {len(faults) - 20} more")
    except asyncio.CancelledError:
        is_ended = True  # The user wants no more of it: nothing is wrong that logs could tell.
        raise
    finally:
        if (is_good or is_ended) and not keep:
            shutil.rmtree(directory)
        else:
            _say(console, f"Logs and configurations are in {directory}")
    if is_good:
        _say(console, "No client saw a failed request.")
    return 0 if is_good else 1


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


async def _perform_on(
    stage: Stage,
    children: Children,
    session: aiohttp.ClientSession,
    console: Console,
    seconds: float,
) -> list[str]:
    watch = Watch(session, server=stage.server, engines=stage.engines, proxies=stage.admins)
    scene = Scene(watch=watch, tiers=TIERS)
    async with (
        LoadGenerator(stage.proxies, scene.record).running() as load,
        background(watch.follow(), view.show(scene, console), _guard(children)),
    ):
        incident = Incident(stage, scene, load, paced(ACTS, seconds))
        await incident.play()
    return incident.report(console)


async def _stay(stage: Stage, children: Children) -> None:
    """Go on with the load of the first act until somebody wants no more of it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        async with LoadGenerator(stage.proxies, lambda _: None).running() as load:
            load.rate = ACTS[0].rate
            await _guard(children)
    except asyncio.CancelledError:
        task.uncancel()


async def _guard(children: Children) -> None:
    """Fail as soon as a process of the stage has ended."""
    while True:
        children.require_alive()
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines beside the block: the first one that fails ends it with its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield
            for task in tasks:
                task.cancel()
    except ExceptionGroup as errors:
        raise _first_of(errors) from None


def _first_of(errors: ExceptionGroup[Exception]) -> Exception:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Turn SIGTERM, and the end of the terminal, into the cancellation that Ctrl-C is: every child is ended."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
