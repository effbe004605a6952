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
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.tiny_ads import TinyAds, tiny_ads
from xds_server.core.model import Affinity, StaticAnswer, Telemetry, Topology
from xds_server.core.policy import FailurePolicy, HealthPolicy, Policy
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.names import cluster_name

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def served(self) -> str | None:
        return self.headers.get("x-served-model")

    @property
    def downgraded(self) -> str | None:
        return self.headers.get("x-model-downgraded")

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-degrade-reason")

    @property
    def attempts(self) -> int:
        return int(self.headers["x-attempt-count"])

    @property
    def story(self) -> tuple[int, str | None, str | None, str | None]:
        """The status and the three headers."""
        return self.status, self.served, self.downgraded, self.reason

    @property
    def events(self) -> list[str]:
        """The payloads of an event stream; the whole text must be events."""
        assert self.headers["content-type"] == "text/event-stream", self
        assert self.text.endswith("\n\n"), self
        blocks = self.text.removesuffix("\n\n").split("\n\n")
        assert all(block.startswith("data: ") for block in blocks), self
        return [block.removeprefix("data: ") for block in blocks]


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
        text = await response.text()
        return Answer(response.status, text, {k.lower(): v for k, v in response.headers.items()})


class ChainLab:
    """The parts, and short ways to use them."""

    def __init__(
        self,
        *,
        tiers: Sequence[Sequence[ScriptedEngine]],
        topology: Topology,
        builder: SnapshotBuilder,
        ads: TinyAds,
        envoy: RealEnvoy,
        session: aiohttp.ClientSession,
        port: int,
    ) -> None:
        self.tiers = tiers
        self.topology = topology
        self.builder = builder
        self.ads = ads
        self.envoy = envoy
        self.session = session
        self.base = f"http://127.0.0.1:{port}"

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
    async with AsyncExitStack() as stack:
        for engines in tiers:
            for engine in engines:
                await stack.enter_async_context(scripted_engine(engine))
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
        ads = await stack.enter_async_context(tiny_ads(builder.build(a_plan(topology, split))))
        envoy = await stack.enter_async_context(
            running_envoy(
                bootstrap(
                    node_id="lab",
                    cluster="test",
                    xds_host="127.0.0.1",
                    xds_port=ads.port,
                ),
                directory,
            )
        )
        port = await envoy.listener_port("llm")
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30)
            )
        )
        yield ChainLab(
            tiers=tiers,
            topology=topology,
            builder=builder,
            ads=ads,
            envoy=envoy,
            session=session,
            port=port,
        )
