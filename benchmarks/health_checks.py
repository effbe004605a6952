"""What active health checks by the proxies save, against outlier detection alone, and what they cost.

One of two engines of a tier fails while clients ask without a pause in two chains at once, one with checks and one
without, each behind an Envoy of its own. *Lost attempts* are the requests that had to be sent again to the next tier:
nobody sees an error, but each waited, for a hung engine as long as the header time-out. *Green* is what vLLM shows
(engines.md): /health answers 200 while every request fails. Only ratios between the two are to be read.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.fakes.chain import ChainLab, chain_lab
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.policy import FailurePolicy, HealthPolicy

WAYS = {"refusing": ("reset", "reset"), "hung": ("hang", "hang"), "green": ("500", "ok")}
"""How requests fail, and how /health does."""
PAUSE_S = 0.02


def engines() -> list[list[ScriptedEngine]]:
    """Return two engines for the first tier and one for the second."""
    return [
        [ScriptedEngine("big"), ScriptedEngine("big")],
        [ScriptedEngine("small")],
    ]


async def ask(lab: ChainLab, *, seconds: float) -> dict[str, Any]:
    """Ask one after the other, and count what had to go to the next tier."""
    ends = time.monotonic() + seconds
    asked = lost = 0
    while time.monotonic() < ends:
        answer = await lab.ask()
        assert answer.status == 200, answer
        asked += 1
        lost += answer.served != "big"
        await asyncio.sleep(PAUSE_S)
    return {"requests": asked, "lost_attempts": lost, "checks": lab.big.health_checks}


async def compare(way: str, folder: Path, *, seconds: float) -> dict[str, Any]:
    """Let both chains meet the same failure at the same time."""
    fails, health = WAYS[way]
    async with AsyncExitStack() as stack:
        labs = {}
        for name, active in (("passive", False), ("active", True)):
            labs[name] = await stack.enter_async_context(
                chain_lab(
                    folder / name,
                    tiers=engines(),
                    failures=FailurePolicy(header_timeout_s=1.0, answer_timeout_s=None),
                    health=HealthPolicy(active=active),
                )
            )
            await labs[name].ask()
        for lab in labs.values():
            lab.big.mode, lab.big.health_mode = fails, health
        found = await asyncio.gather(*(ask(lab, seconds=seconds) for lab in labs.values()))
    return dict(zip(labs, found, strict=True))


async def play(*, seconds: float) -> dict[str, Any]:
    """Compare every way of failing."""
    with tempfile.TemporaryDirectory() as folder:
        return {way: await compare(way, Path(folder) / way, seconds=seconds) for way in WAYS}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    seconds = 10.0 if quick else 60.0
    return {"seconds": seconds, "ways": asyncio.run(play(seconds=seconds))}
