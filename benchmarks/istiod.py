"""From our push to the routes of a sidecar, through a real istiod, at four changes a second.

Runs only where PILOT_DISCOVERY_BIN names an istiod. The baseline is istiod alone: the same changes, made in a file
that it watches itself.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.rig import percentile
from tests.fakes.empty_kube import empty_kube
from tests.fakes.istiod_port import Sidecar, sidecar
from tests.fakes.mesh_lab import BIG, HOST, SERVICES, SMALL, TABLE, mesh_lab, split, written
from tests.fakes.real_istiod import BINARY, RealIstiod, real_istiod

CHANGES_PER_S = 4
SIDECARS = (1, 100)
"""Sidecars that are connected; all have to have the routes."""


def run(*, quick: bool) -> dict[str, Any]:
    """Measure, or say that there is no istiod."""
    if not BINARY:
        return {"skipped": "PILOT_DISCOVERY_BIN names no istiod"}
    return asyncio.run(_run(seconds=5 if quick else 60))


async def _run(*, seconds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"changes_per_s": CHANGES_PER_S, "seconds": seconds}
    for count in SIDECARS:
        result[f"config_source_{count}_sidecars"] = await _source(seconds, count)
        result[f"file_{count}_sidecars"] = await _file(seconds, count)
    return result


async def _source(seconds: int, count: int) -> dict[str, float]:
    """Time what our config source tells istiod."""
    with tempfile.TemporaryDirectory() as folder:
        async with mesh_lab(Path(folder)) as lab, AsyncExitStack() as stack:
            watchers = await _watchers(lab.istiod, count, stack)
            pushed: list[float] = []
            lab.ours.around.published.subscribe(lambda _: pushed.append(time.monotonic()))
            decided, arrived = [], []
            started = time.monotonic()
            for step in range(seconds * CHANGES_PER_S):
                await asyncio.sleep(max(0.0, started + step / CHANGES_PER_S - time.monotonic()))
                big = 5 + 37 * step % 90
                decided.append(time.monotonic())
                lab.plan(big, 100 - big)
                arrived.append(await _all_have(watchers, big))
            waited = [at - from_ for at, from_ in zip(arrived, pushed, strict=True)]
            late = [at - from_ for at, from_ in zip(arrived, decided, strict=True)]
            return {**_figures(waited), "decided_to_rds_p99_s": percentile(late, 0.99)}


async def _file(seconds: int, count: int) -> dict[str, float]:
    """Time what istiod reads from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        written(path / "services", *SERVICES, _routes(90))
        async with (
            empty_kube() as kube,
            real_istiod(
                path / "istiod",
                sources=[f"fs://{path / 'services'}"],
                kubeconfig=kube.kubeconfig(path),
            ) as istiod,
            AsyncExitStack() as stack,
        ):
            watchers = await _watchers(istiod, count, stack)
            waited = []
            started = time.monotonic()
            for step in range(seconds * CHANGES_PER_S):
                await asyncio.sleep(max(0.0, started + step / CHANGES_PER_S - time.monotonic()))
                big = 5 + 37 * step % 90
                at = time.monotonic()
                written(path / "services", *SERVICES, _routes(big))
                waited.append(await _all_have(watchers, big) - at)
            return _figures(waited)


async def _watchers(istiod: RealIstiod, count: int, stack: AsyncExitStack) -> list[Sidecar]:
    made = []
    for number in range(count):
        watcher: Sidecar = await stack.enter_async_context(
            sidecar(istiod.xds, host=HOST, table=TABLE, node_id=f"client-{number}")
        )
        made.append(watcher)
    for each in made:
        await each.until(split(90, 10), timeout_s=20)
    return made


async def _all_have(watchers: list[Sidecar], big: int) -> float:
    """Wait until every sidecar has the split; return when the last one got it."""
    wanted = split(big, 100 - big)
    await asyncio.gather(*(each.until(wanted, timeout_s=10) for each in watchers))
    return max(each.log[-1][0] for each in watchers)


def _routes(big: int) -> dict[str, Any]:
    parts = [
        {"destination": {"host": host, "port": {"number": 8000}}, "weight": weight}
        for host, weight in ((BIG, big), (SMALL, 100 - big))
    ]
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "chat", "namespace": "ai"},
        "spec": {"hosts": [HOST], "http": [{"name": "chat", "route": parts}]},
    }


def _figures(waited: list[float]) -> dict[str, float]:
    return {
        "changes": len(waited),
        "p50_s": percentile(waited, 0.50),
        "p99_s": percentile(waited, 0.99),
        "max_s": max(waited),
    }
