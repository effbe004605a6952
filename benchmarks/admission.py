"""Limits by tokens on real Envoys: what is admitted of more than enough, and what odd requests get past.

Clients offer about three times the limit, in requests of mixed sizes, a few of which try to hide what they cost; each is
counted by the documented rule when it is answered by a model. Meanwhile weights are pushed ten times a second.

* `alone`: one proxy has the whole limit;
* `shared`: two proxies share it; then one is stopped, and a while later the other has all of it;
* `changing`: a proxy comes a third of the way through, and the first one goes at two thirds;
* `tier`: the first tier fails all the time, and the fallback has the limit: what it is given, sent or failed over.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.limits_lab import LimitsLab, limits_lab
from xds_server.core.limits import Limit
from xds_server.core.policy import AdmissionPolicy

LIMIT = 10_000
"""Tokens per second."""
OVERLOAD = 3
"""What is offered, in limits."""
CLIENTS = 36
PUSHES_PER_SECOND = 10
MODELS = ("llama-3-70b", "llama-3-8b")
SIZES = (16, 64, 128, 256, 512, 1024, 2048)
"""Tokens that requests may generate."""
PROMPTS = (40, 400, 4000)
"""Bytes of prompts."""
HIDDEN = (
    b'{"max_tokens": -100}',
    b'{"max_tokens": "100"}',
    b'{"max_tokens": 1e12}',
    b'{"max_tokens": 100',
    b'{"n": 0, "max_tokens": 1}',
)
"""Bodies that must be refused."""
POLICY = AdmissionPolicy()
"""The defaults."""


def tokens_of(asked: int, size: int) -> int:
    """Return what a request costs: the rule of docs/requests.md."""
    return int(asked + size * 0.25) + 1


@dataclass
class Count:
    """What clients got."""

    admitted: int = 0
    """Tokens."""
    offered: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    slipped: int = 0
    """Requests that had to be refused and were not."""


async def client(
    lab: LimitsLab,
    count: Count,
    *,
    until: float,
    seed: int,
    proxies: list[str],
    served: tuple[str, ...],
) -> None:
    """Offer a client's part of three times the limit, from a moment of its own on."""
    draw = random.Random(seed)
    pause_s = CLIENTS / (OVERLOAD * LIMIT)
    await asyncio.sleep(draw.random())
    while (now := time.monotonic()) < until:
        proxy = proxies[seed % len(proxies)]
        if draw.random() < 0.05:
            reply = await lab.ask(draw.choice(HIDDEN), proxy=proxy)
            count.slipped += reply.status != 400
            continue
        asked = draw.choice(SIZES)
        prompt = b"x" * draw.choice(PROMPTS)
        body = b'{"max_tokens": %d, "prompt": "%b"}' % (asked, prompt)
        cost = tokens_of(asked, len(body))
        reply = await lab.ask(body, proxy=proxy)
        count.offered += cost
        if reply.status == 200 and reply.served in served:
            count.admitted += cost
        count.answers[f"{reply.status} {reply.served or ''}".strip()] += 1
        pause = min(until, now + cost * pause_s) - time.monotonic()
        await asyncio.sleep(max(0.0, pause))


async def offer(
    lab: LimitsLab, seconds: float, proxies: list[str], *, served: tuple[str, ...] = MODELS
) -> dict[str, Any]:
    """Run all clients for a time, with weight pushes; return what was admitted."""
    count, until = Count(), time.monotonic() + seconds
    shares = [0, 0]

    async def push() -> None:
        while time.monotonic() < until:
            shares[0] += 1
            lab.plan((1000 - shares[0] % 2, shares[0] % 2, 0))
            await asyncio.sleep(1 / PUSHES_PER_SECOND)

    started = time.monotonic()
    await asyncio.gather(
        push(),
        *(
            client(lab, count, until=until, seed=seed, proxies=proxies, served=served)
            for seed in range(CLIENTS)
        ),
    )
    took_s = time.monotonic() - started
    return {
        "seconds": round(took_s, 1),
        "offered_ratio": round(count.offered / (LIMIT * took_s), 3),
        "admitted_ratio": round(count.admitted / (LIMIT * took_s), 4),
        "slipped": count.slipped,
        "answers": dict(sorted(count.answers.items())),
        "weight_pushes": shares[0],
    }


async def _alone(folder: Path, seconds: float) -> dict[str, Any]:
    async with limits_lab(folder, limit=Limit(tokens_per_second=LIMIT), admission=POLICY) as lab:
        return await offer(lab, seconds, ["one"])


async def _settled(lab: LimitsLab, count: int) -> float:
    """Wait until the limit is divided over so many proxies; return how long it took."""
    assert lab.divider is not None
    started = time.monotonic()
    while len(lab.divider.parts) != count or abs(sum(lab.divider.parts.values()) - 1) > 1e-9:
        await asyncio.sleep(0.05)
    return time.monotonic() - started


async def _shared(folder: Path, seconds: float) -> dict[str, Any]:
    async with limits_lab(
        folder,
        limit=Limit(tokens_per_second=LIMIT),
        admission=POLICY,
        proxies=("one", "two"),
        divided=True,
    ) as lab:
        await _settled(lab, 2)
        both = await offer(lab, seconds, ["one", "two"])
        await lab.envoys["two"].stop()
        regained_s = await _settled(lab, 1)
        after = await offer(lab, seconds, ["one"])
        return {"both": both, "regained_s": round(regained_s, 1), "alone_after": after}


async def _changing(folder: Path, seconds: float) -> dict[str, Any]:
    async with limits_lab(
        folder,
        limit=Limit(tokens_per_second=LIMIT),
        admission=POLICY,
        proxies=("one",),
        divided=True,
    ) as lab:
        proxies = ["one"]

        async def change() -> None:
            await asyncio.sleep(seconds / 3)
            await lab.start("two")
            proxies[:] = ["one", "two"]
            await asyncio.sleep(seconds / 3)
            proxies[:] = ["two"]
            await asyncio.sleep(1.0)  # What is under way ends.
            await lab.envoys["one"].stop()

        changing = asyncio.create_task(change())
        found = await offer(lab, seconds, proxies)
        await changing
        return found


async def _tier(folder: Path, seconds: float) -> dict[str, Any]:
    limit = Limit(tokens_per_second=LIMIT)
    async with limits_lab(folder, fallback=limit, admission=POLICY) as lab:
        lab.big.mode = "500"
        return await offer(lab, seconds, ["one"], served=("llama-3-8b",))


def run(*, quick: bool) -> dict[str, Any]:
    """Run all parts."""
    seconds = 5.0 if quick else 30.0
    result: dict[str, Any] = {"limit_tokens_per_second": LIMIT, "clients": CLIENTS}
    parts = {"alone": _alone, "shared": _shared, "changing": _changing, "tier": _tier}
    for name, part in parts.items():
        with tempfile.TemporaryDirectory() as folder:
            result[name] = asyncio.run(part(Path(folder), seconds))
    runs = [
        result["alone"],
        result["shared"]["both"],
        result["shared"]["alone_after"],
        result["tier"],
    ]
    result["must"] = {
        "never more than 5 % above, whoever comes and goes": (
            result["changing"]["admitted_ratio"] <= 1.05
        ),
        "admitted within 5 % of the limit": all(
            abs(each["admitted_ratio"] - 1) <= 0.05 for each in runs
        ),
        "no bypass": all(each["slipped"] == 0 for each in runs),
        "offered above the limit": all(each["offered_ratio"] > 1.2 for each in runs),
    }
    return result
