"""Any topology on a real Envoy, for tests of what decides where a request goes.

async with routing_lab(tmp_path, topology) as lab:
    answer = await lab.ask({"model": "small"})
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from yarl import URL

from tests.fakes.answer import CHAT, Answer
from tests.fakes.plans import a_plan, a_tier
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.served import Served, all_running, served
from xds_server.core import classes
from xds_server.core.model import Tier, Topology
from xds_server.core.plan import Plan
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability


class RoutingLab:
    """The parts, and short ways to use them."""

    def __init__(self, *, topology: Topology, builder: SnapshotBuilder, at: Served) -> None:
        self.topology = topology
        self.builder = builder
        self.ads = at.ads
        self.envoy = at.envoy
        self.session = at.session
        self.port = at.port

    def plan(self, split: Sequence[int] | None = None) -> Plan:
        """Push a plan that gives every model's tiers this split, divided over the classes."""
        plan = a_plan(self.topology, split)
        self.push(plan)
        return plan

    def push(self, plan: Plan) -> None:
        """Push a plan, divided over the classes."""
        _, divided = classes.divide(classes.initial(self.topology.classes), plan)
        self.ads.set(self.builder.build(divided))

    async def ask(
        self,
        body: Any = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        **headers: str,
    ) -> Answer:
        """Send one request: a mapping as JSON, bytes as they are; `x_class` stands for `x-class`."""
        data = None if body is None and method == "GET" else body
        if not isinstance(data, bytes | None):
            data = json.dumps(data).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            sent = {"content-type": "application/json"} | sent
        async with self.session.request(
            method,
            URL(f"http://127.0.0.1:{self.port}{path}", encoded="%" in path),
            data=data,
            headers=sent,
        ) as response:
            return await Answer.of(response)

    async def count(self, count: int, body: Any = None, **question: Any) -> Counter[Any]:
        """Ask at the same time; count who served."""
        answers = await asyncio.gather(*(self.ask(body or {}, **question) for _ in range(count)))
        return Counter(answer.served or answer.status for answer in answers)

    async def assert_all_accepted(self) -> None:
        """Assert that Envoy took everything it was sent."""
        assert await self.envoy.rejected() == {}


@asynccontextmanager
async def running_tiers(
    *engines: Sequence[ScriptedEngine], prefix: str = ""
) -> AsyncIterator[tuple[Tier, ...]]:
    """Run engines; yield tiers of them, called primary, fallback, third."""
    names = ("primary", "fallback", "third")
    async with all_running(engine for tier in engines for engine in tier):
        yield tuple(
            a_tier(name, tier[0].model, [each.port for each in tier], prefix=prefix)
            for name, tier in zip(names, engines, strict=False)
        )


@asynccontextmanager
async def routing_lab(
    directory: Path,
    topology: Topology,
    *,
    failures: FailurePolicy | None = None,
    split: Sequence[int] | None = None,
    capability: Capability = Capability.COMPOSITE,
) -> AsyncIterator[RoutingLab]:
    """Serve a topology to one Envoy for as long as the block lasts."""
    builder = SnapshotBuilder(topology, Policy(failures=failures or FailurePolicy()), capability)
    _, plan = classes.divide(classes.initial(topology.classes), a_plan(topology, split))
    async with served(builder.build(plan), directory) as at:
        yield RoutingLab(topology=topology, builder=builder, at=at)
