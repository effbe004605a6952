"""A config source with a real loop behind it, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import yaml

from tests.fakes.xds_process import ROOT
from xds_server.config.config import Config
from xds_server.config.load import load_text
from xds_server.core.inputs import Drain, Force
from xds_server.core.model import InstanceId, ModelName, TierName
from xds_server.core.plan import Plan
from xds_server.fleet import Fleet
from xds_server.istio.mcp.catalog import Catalog
from xds_server.istio.mcp.source import ConfigSource
from xds_server.istio.mesh import MeshNow
from xds_server.istio.way import Around
from xds_server.istio.weights import ModelWeights
from xds_server.loop.control_loop import ControlLoop
from xds_server.observability.history import History
from xds_server.observability.metrics import Tally
from xds_server.resources.snapshot import Snapshot
from xds_server.store.row import Row

TEXT = (ROOT / "tests/istio/mesh.yaml").read_text()
HOST = "llm.ai.svc.cluster.local"
PRIMARY, FALLBACK = "vllm-70b.ai.svc.cluster.local", "vllm-8b.ai.svc.cluster.local"
OURS = {"host": PRIMARY, "port": 8000, "endpoints": "instances"}


def config_of(
    *, tiers: dict[str, Any] | None = None, source: dict[str, Any] | None = None, **model: Any
) -> Config:
    """tests/istio/mesh.yaml with other tiers, another config source, another model."""
    document = yaml.safe_load(TEXT)
    document["istio"]["models"][0].update(model)
    document["istio"]["models"][0]["tiers"].update(tiers or {})
    document["istio"]["config_source"] = {"listen": "127.0.0.1:0"} | (source or {})
    return load_text(yaml.safe_dump(document, sort_keys=False))


class NoBuilder:
    def __init__(self, *_: Any) -> None:
        pass

    def build(self, _plan: Plan) -> Snapshot:
        return Snapshot({})


class Rig:
    """Make it with `running_rig`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tally = Tally()
        self.rows: list[Row] = []
        self.told: list[ModelWeights] = []
        self.loop = ControlLoop(
            fleet=Fleet(config.topology, config.policy, time.monotonic()),
            make_builder=NoBuilder,
            publish=lambda *_: None,
            clock=time.monotonic,
            tally=self.tally,
            push_gap_s=0.0,
            capabilities=(),
        )
        history = History(self.rows.append, topology=lambda: self.loop.fleet.topology)
        self.around = Around(
            config=lambda: self.config,
            loop=self.loop,
            tally=self.tally,
            history=history,
            mesh=MeshNow(lambda: self.config.istio, lambda: self.loop.fleet.topology),
        )
        self.around.published.subscribe(self.told.append)
        assert config.istio is not None
        assert config.istio.config_source is not None
        self.source = ConfigSource(self.around, config.istio.config_source)
        self.published_at: list[float] = []
        """When istiods were told something else."""
        publish = self.source.server.publish

        def noted(catalog: Catalog) -> None:
            self.published_at.append(time.monotonic())
            publish(catalog)

        self.source.server.publish = noted

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.source.server.port}"

    def force(self, tier: str | None) -> None:
        order = Force(
            model=ModelName("chat"),
            tier=None if tier is None else TierName(tier),
            who="test",
            until=time.monotonic() + 300,
            until_unix_s=time.time() + 300,
        )
        self.loop.force_tier(order)

    def drain(self, instance: str, *, draining: bool = True) -> None:
        self.loop.drain(Drain(instance=InstanceId(instance), draining=draining, who="test"))

    async def reload(self, config: Config) -> None:
        """As the process does it: the loop first, then the file counts."""
        await self.loop.reconfigure(config.topology, config.policy)
        self.config = config

    def named(self, name: str) -> list[str]:
        return [each.text for each in self.rows if each.name == name]


@asynccontextmanager
async def running_rig(config: Config | None = None, *, warm: bool = True) -> AsyncIterator[Rig]:
    """Run a config source for as long as the block lasts."""
    rig = Rig(config or config_of())
    rig.source.listen()
    if warm:
        rig.loop.warm_up()
    tasks = [
        asyncio.create_task(rig.loop.run(), name="loop"),
        asyncio.create_task(rig.source.run(), name="config-source"),
    ]
    try:
        yield rig
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await rig.source.server.stop(0)
