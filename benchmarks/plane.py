"""The whole control plane as a benchmark process, with a stopwatch at the decision.

It is `xds-server serve` in every respect, except that the age of each sample is read off when the brain
takes it in: the load client writes its monotonic clock into the engine's detail text, so the age
contains the socket, gRPC, decoding and the throttle. Commands: `ages` (percentiles since the last call),
`push` (an operator drains one
more instance, which every proxy must learn).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.commands import obey, say
from benchmarks.fleet import topology
from benchmarks.rig import percentile
from xds_server import logs
from xds_server.app import App
from xds_server.config.load import load_file
from xds_server.config.settings import resolve
from xds_server.core.inputs import Drain, Input
from xds_server.core.model import Topology
from xds_server.core.plan import Plan
from xds_server.core.sample import Sample
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import ENDPOINT, Snapshot


def document(fleet: Topology) -> dict[str, Any]:
    """Return the configuration file of a fleet."""
    models = []
    for model in fleet.models:
        tiers: list[dict[str, Any]] = []
        for tier in model.tiers:
            entry: dict[str, Any] = {"name": tier.name}
            if tier.answer is not None:
                entry["answer"] = {"status": 200, "json": dict(tier.answer.body)}
            else:
                entry["serves"] = tier.serves
                entry["instances"] = [
                    {"name": i.id, "address": f"{i.host}:{i.port}", "capacity": i.capacity}
                    for i in tier.instances
                ]
            tiers.append(entry)
        match = {"domains": list(model.domains), "prefix": model.prefix}
        models.append({"name": model.name, "match": match, "tiers": tiers})
    return {"listener": {"address": "127.0.0.1", "port": 0}, "models": models}


class Stopwatch:
    """Wraps the brain: how old is each sample when it is decided upon."""

    def __init__(self, app: App) -> None:
        self.ages: list[float] = []
        self.publications = 0
        self._publish = app.cache.publish
        app.cache.publish = self._count  # type: ignore[method-assign]
        self._decide = app.loop.fleet.evaluate
        app.loop.fleet.evaluate = self._evaluate  # type: ignore[method-assign]

    def _evaluate(self, inputs: Sequence[Input], now: float) -> Plan:
        at = time.monotonic()
        for each in inputs:
            if isinstance(each, Sample) and each.engine.detail:
                self.ages.append(at - float(each.engine.detail))
        return self._decide(inputs, now)

    def _count(self, capability: Capability, snapshot: Snapshot) -> None:
        self.publications += 1
        self._publish(capability, snapshot)

    def read(self) -> dict[str, Any]:
        """Return percentiles of the ages, and how often was published, since the last reading."""
        ages, self.ages = self.ages, []
        published, self.publications = self.publications, 0
        if not ages:
            return {"count": 0, "published": published}
        return {
            "count": len(ages),
            "published": published,
            "p50_ms": percentile(ages, 0.5) * 1e3,
            "p99_ms": percentile(ages, 0.99) * 1e3,
            "worst_ms": max(ages) * 1e3,
        }


async def serve(*, models: int, per_tier: int, folder: Path) -> None:
    """Serve until standard input closes."""
    fleet = topology(models=models, per_tier=per_tier)
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(document(fleet)))
    config = load_file(path)
    flags = {
        "xds_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "state_dir": str(folder / "state"),
        "grace_s": 0.1,
    }
    logs.set_up(style="json", level="error")
    app = App(path=path, config=config, settings=resolve(flags=flags, environ={}, file={}))
    watch = Stopwatch(app)
    running = asyncio.create_task(app.run())
    while (port := app.xds_port) is None:
        await asyncio.sleep(0.05)
        if running.done():
            running.result()
    say({"port": port})
    names = (instance.id for _, _, instance in fleet.instances())

    async def ages(_: dict[str, Any]) -> dict[str, Any]:
        return watch.read()

    async def push(_: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        app.loop.drain(Drain(instance=next(names), draining=True, who="benchmark"))
        app.loop.step()
        (snapshot,) = app.loop.snapshots.values()
        return {"version": snapshot.of_type(ENDPOINT).version, "at": started}

    await obey({"ages": ages, "push": push})
    app.stop()
    await running


def main() -> None:
    """Run from `benchmarks.rig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, required=True)
    parser.add_argument("--per-tier", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            serve(models=arguments.models, per_tier=arguments.per_tier, folder=Path(folder))
        )


if __name__ == "__main__":
    main()
