"""What clients get when engines fail and nobody steers: the control plane is killed with -9 first.

`live_streams` comes before that: the control plane lives, agents' samples move weights, an operator drains one
instance, and another one fails and recovers, all while streams are open on every instance.

Every other case has a chain of its own behind one Envoy: two engines per tier, two tiers and the static answer, header
time-out 3 s, defaults otherwise. *Attempts* are requests that reached an engine, counted by the engines;
*tries* are Envoy's, as `x-attempt-count` says them, the static answer included. A refused connection reaches no engine.
Latencies contain the Python client and the engines, which share one process.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rig import percentile
from tests.fakes.answer import Answer
from tests.fakes.live_streams import FALLBACK, PRIMARY, live_streams
from tests.fakes.orphan import Chain, orphaned_chains
from tests.fakes.scripted_engine import ScriptedEngine

HEADER_TIMEOUT_S = 3.0
CLIENTS = 20
BUSY = ("429", "503")
"""Answers that eject nobody, so each tier is asked once per request for as long as they last."""
WAYS = ("500", "503", "429", "reset", "hang", "refuse", "empty", "overflow")
DEAD = ("500", "reset", "hang", "refuse", *BUSY)
BIG, SMALL = "llama-3-70b", "llama-3-8b"


def chain(way: str) -> Chain:
    """Return two engines per tier; none, or one with room for one request, where that is the case."""
    first = [] if way == "empty" else [ScriptedEngine(BIG, plain_s=0.05) for _ in range(2)]
    limits = {"primary": {"concurrency": 1}} if way == "overflow" else {}
    return Chain(tiers=[first, [ScriptedEngine(SMALL) for _ in range(2)]], limits=limits)


async def break_tiers(broken: Chain, way: str, tiers: int) -> None:
    """Let the engines of the first `tiers` tiers fail."""
    for engines in broken.tiers[:tiers]:
        for engine in engines:
            if way == "refuse":
                await engine.stop_listening()
            if way not in ("empty", "overflow"):
                engine.mode = "reset" if way == "refuse" else way  # ends what is still open


class Load:
    """Closed-loop clients that pause between requests, and what they were told."""

    def __init__(self, asked: Chain, *, stream: bool) -> None:
        self._asked = asked
        self._stream = stream
        self._random = random.Random(1)
        self.latencies: list[float] = []
        self.stories: collections.Counter[str] = collections.Counter()
        self.tries = 0
        self.at_once: list[float] = []
        """Latencies of answers that took one try."""
        self.errors = 0
        self.untrue = 0

    async def run(self, requests: int, *, pause_s: float, truths: set[tuple[Any, ...]]) -> None:
        """Send so many requests from `CLIENTS` clients."""
        turns = iter(range(requests))

        async def client() -> None:
            while next(turns, None) is not None:
                started = time.monotonic()
                answer = await self._asked.ask(stream=self._stream)
                self.latencies.append(time.monotonic() - started)
                self._note(answer, truths)
                await asyncio.sleep(self._random.uniform(0.5, 1.5) * pause_s)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    def _note(self, answer: Answer, truths: set[tuple[Any, ...]]) -> None:
        if answer.attempts == 1:
            self.at_once.append(self.latencies[-1])
        self.stories[" ".join(str(each) for each in answer.story)] += 1
        self.tries += answer.attempts
        self.errors += answer.status != 200 or not is_whole(answer, stream=self._stream)
        self.untrue += answer.story not in truths

    def row(self, attempts: int) -> dict[str, Any]:
        """Return the figures."""
        count = len(self.latencies)
        return {
            "requests": count,
            "client_errors": self.errors,
            "untrue_headers": self.untrue,
            "answers": dict(self.stories),
            "p50_ms": round(percentile(self.latencies, 0.5) * 1e3, 1),
            "p99_ms": round(percentile(self.latencies, 0.99) * 1e3, 1),
            "attempts_per_request": round(attempts / count, 3),
            "tries_per_request": round(self.tries / count, 3),
        }


def is_whole(answer: Answer, *, stream: bool) -> bool:
    """Whether an answer is complete in the form that was asked for."""
    if stream:
        return answer.text.endswith("data: [DONE]\n\n")
    return "choices" in json.loads(answer.text)


async def ways_down(folder: Path, requests: int) -> dict[str, Any]:
    """Break the primary in every way, and then everything."""
    chains = {
        f"{group}-{way}-{form}": chain(way)
        for group, ways in (("primary", WAYS), ("all", DEAD))
        for way in ways
        for form in ("json", "sse")
    }
    rows: dict[str, Any] = {}
    times = {"header_timeout_s": HEADER_TIMEOUT_S, "answer_timeout_s": HEADER_TIMEOUT_S}
    async with orphaned_chains(folder, chains, failures=times):
        for name, each in chains.items():
            group, way, form = name.split("-")
            await break_tiers(each, way, 1 if group == "primary" else 2)
            rows[name.replace("-", "/")] = await row(each, group, way, form, requests)
    return rows


async def row(asked: Chain, group: str, way: str, form: str, requests: int) -> dict[str, Any]:
    """Measure one case."""
    static = (200, "static", "true", "failover")
    fallback = (200, SMALL, "true", "no_capacity" if way == "empty" else "failover")
    truths: set[tuple[Any, ...]] = {static} if group == "all" else {fallback}
    if way == "overflow":
        truths.add((200, BIG, None, None))
    before = asked.engine_requests
    load = Load(asked, stream=form == "sse")
    await load.run(requests, pause_s=0.05, truths=truths)
    result = load.row(asked.engine_requests - before)
    if group == "all" and way not in BUSY:
        result["once_ejected"] = await once_ejected(asked, stream=form == "sse", truths=truths)
    return result


async def once_ejected(
    asked: Chain, *, stream: bool, truths: set[tuple[Any, ...]]
) -> dict[str, Any]:
    """Measure requests for which no engine was asked, because all are ejected."""
    load = Load(asked, stream=stream)
    await load.run(400, pause_s=0.1, truths=truths)
    return {
        "requests": len(load.at_once),
        "p50_ms": round(percentile(load.at_once, 0.5) * 1e3, 1),
        "p99_ms": round(percentile(load.at_once, 0.99) * 1e3, 1),
    }


async def live(folder: Path, streams: int, pushes: int) -> dict[str, Any]:
    """Keep streams open across what the real control plane decides: pushes, a drain, a fault, a recovery."""
    run = await live_streams(folder, streams=streams, pushes=pushes)
    return {
        "streams": run.streams,
        "pushes": run.pushes,
        "seconds": run.seconds,
        "cut": run.cut,
        "short_requests_meanwhile": run.others.total(),
        "answered_by_an_engine": sum(run.others[name] for name in (*PRIMARY, *FALLBACK)),
    }


async def _run(*, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "streams").mkdir()
        streams = await live(Path(name) / "streams", *((10, 20) if quick else (50, 100)))
        rows = await ways_down(Path(name), 60 if quick else 1000)
    return {"live_streams": streams, **rows}


def run(*, quick: bool) -> dict[str, Any]:
    """Measure every case."""
    return asyncio.run(_run(quick=quick))
