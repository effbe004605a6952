"""A whole chain on loopback: scripted engines, a real Envoy, and the snapshot that joins them.

async with chain_lab(tmp_path) as lab:
    lab.big.mode = "500"
    answer = await lab.ask()
    assert answer.served == "llama-3-8b"
"""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.answer import CHAT, Answer
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.served import Served, all_running, served
from xds_server.core.model import Affinity, StaticAnswer, Telemetry, Topology
from xds_server.core.policy import FailurePolicy, HealthPolicy, Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.names import cluster_name


async def ask(
    session: aiohttp.ClientSession,
    base: str,
    *,
    path: str = CHAT,
    stream: bool | None = None,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request and read its answer to the end."""
    asked: dict[str, Any] = {"model": "chat", "messages": []}
    if stream is not None:
        asked["stream"] = stream
    sent = {"content-type": "application/json"} | (headers or {})
    async with session.post(
        base + path, data=io.BytesIO(body or json.dumps(asked).encode()), headers=sent
    ) as response:
        return await Answer.of(response)


class ChainLab:
    """The parts, and short ways to use them."""

    def __init__(
        self,
        *,
        tiers: Sequence[Sequence[ScriptedEngine]],
        topology: Topology,
        builder: SnapshotBuilder,
        at: Served,
    ) -> None:
        self.tiers = tiers
        self.topology = topology
        self.builder = builder
        self.ads = at.ads
        self.envoy = at.envoy
        self.session = at.session
        self.base = f"http://127.0.0.1:{at.port}"

    @property
    def big(self) -> ScriptedEngine:
        """The first engine of the first tier."""
        return self.tiers[0][0]

    @property
    def small(self) -> ScriptedEngine:
        """The first engine of the second tier."""
        return self.tiers[1][0]

    def plan(self, split: Sequence[int] | None = None, **numbers: Any) -> None:
        """Push a plan; see `tests.fakes.plans.a_model_plan`."""
        self.ads.set(self.builder.build(a_plan(self.topology, split, **numbers)))

    async def ask(
        self,
        *,
        path: str = CHAT,
        stream: bool | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send one request and read its answer to the end."""
        return await ask(
            self.session, self.base, path=path, stream=stream, body=body, headers=headers
        )

    async def ask_many(self, count: int, **question: Any) -> Counter[Any]:
        """Ask one after the other; count the stories."""
        return Counter([(await self.ask(**question)).story for _ in range(count)])

    async def ask_at_once(self, count: int, **question: Any) -> Counter[Any]:
        """Ask at the same time; count the stories."""
        answers = await asyncio.gather(*(self.ask(**question) for _ in range(count)))
        return Counter(answer.story for answer in answers)

    async def obeyed(self, served: str | None) -> Answer:
        """Ask until an answer comes from `served`."""

        async def probe() -> Answer | None:
            answer = await self.ask()
            return answer if answer.served == served else None

        answer = await self.envoy.until(probe, what=f"an answer from {served}")
        assert answer is not None
        return answer

    async def ejected(self, tier: str) -> list[bool]:
        """Whether Envoy has ejected each endpoint of a tier."""
        name = cluster_name(self.topology.models[0].name, tier)  # type: ignore[arg-type]
        hosts = (await self.envoy.clusters())[name]
        return [bool(each["health_status"].get("failed_outlier_check")) for each in hosts]

    async def assert_all_accepted(self) -> None:
        """Assert that Envoy took everything it was sent."""
        assert await self.envoy.rejected() == {}
        assert self.ads.nacks == []
        assert "envoy bug" not in self.envoy.log().lower()


@asynccontextmanager
async def chain_lab(
    directory: Path,
    *,
    capability: Capability = Capability.COMPOSITE,
    failures: FailurePolicy | None = None,
    tiers: Sequence[Sequence[ScriptedEngine]] | None = None,
    answer: StaticAnswer | None = None,
    split: Sequence[int] | None = None,
    health: HealthPolicy | None = None,
    affinity: Affinity | None = None,
    telemetry: Telemetry = Telemetry.AGENTS,
) -> AsyncIterator[ChainLab]:
    """Run a chain; by default one 70B, one 8B and the static tier, header time-out 0.5 s."""
    failures = failures or FailurePolicy(header_timeout_s=0.5, answer_timeout_s=None)
    tiers = tiers or [[ScriptedEngine("llama-3-70b")], [ScriptedEngine("llama-3-8b")]]
    async with all_running(engine for tier in tiers for engine in tier):
        names = ("primary", "fallback", "third", "fourth")
        model = a_model(
            tiers=[
                *(
                    replace(
                        a_tier(
                            name,
                            engines[0].model if engines else name,
                            [engine.port for engine in engines],
                        ),
                        affinity=affinity,
                        telemetry=telemetry,
                    )
                    for name, engines in zip(names, tiers, strict=False)
                ),
                a_static_tier(answer) if answer else a_static_tier(),
            ]
        )
        topology = a_topology(model)
        policy = Policy(failures=failures, health=health or HealthPolicy())
        builder = SnapshotBuilder(topology, policy, capability)
        snapshot = builder.build(a_plan(topology, split))
        async with served(snapshot, directory) as at:
            yield ChainLab(tiers=tiers, topology=topology, builder=builder, at=at)
