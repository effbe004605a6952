"""Streams that are open while everything of the control plane moves: a real server, a real Envoy, scripted agents.

run = await live_streams(tmp_path, streams=20, pushes=100)
assert run.cut == 0
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.telemetry_client import ScriptedAgent, connected_agent
from tests.fakes.xds_process import XdsProcess, running_server
from xds_server.resources.bootstrap import bootstrap

PRIMARY, FALLBACK = ("a", "b", "c"), ("d",)
DRAINED, FAULTY = "a", "b"
CAPACITY = 100
BUSY = {"kv_ratio": 0.9, "waiting": 30.0, "running": 100.0}
IDLE = {"kv_ratio": 0.1, "waiting": 0.0, "running": 10.0}
PUSH_COUNTERS = "^(http.llm.rds.llm.config_reload|cluster.chat/(primary|fallback).update_success)$"


@dataclass
class LiveRun:
    """What became of everything."""

    streams: int
    cut: int = 0
    """Streams that did not reach their end with every event in order."""
    ended_early: int = 0
    """Streams that were over before they were told to end."""
    pushes: int = 0
    """Changes of weights and endpoints that the proxy took in while all streams were open."""
    seconds: float = 0.0
    others: Counter[str] = field(default_factory=Counter)
    """What short requests got meanwhile, by the engine or by what went wrong."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Updates that the proxy refused."""


def document(engines: Mapping[str, ScriptedEngine], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration: two tiers of engines and a static answer; `more` of the first tier."""

    def listed(names: tuple[str, ...]) -> list[dict[str, Any]]:
        return [
            {"name": name, "address": f"127.0.0.1:{engines[name].port}", "capacity": CAPACITY}
            for name in names
        ]

    primary = {"name": "primary", "serves": "big", "instances": listed(PRIMARY), **more}
    fallback = {"name": "fallback", "serves": "small", "instances": listed(FALLBACK)}
    static = {"name": "static", "answer": {"json": {"busy": True}}}
    return {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [{"name": "chat", "tiers": [primary, fallback, static]}],
        "policy": {"recovery": {"hold_s": 0.3}, "failures": {"token_stall_s": 5.0}},
    }


class _Scene:
    """The parts, and what happens with them."""

    def __init__(
        self,
        *,
        server: XdsProcess,
        envoy: RealEnvoy,
        agent: ScriptedAgent,
        engines: Mapping[str, ScriptedEngine],
        session: aiohttp.ClientSession,
        url: str,
    ) -> None:
        self.server = server
        self.envoy = envoy
        self.agent = agent
        self.engines = engines
        self.session = session
        self.url = url
        self.others: Counter[str] = Counter()
        self.down: set[str] = set()
        """Instances that their agent calls down."""

    async def stream(self) -> bool:
        """Read a stream to its end; return whether every event was there."""
        asked = {"model": "chat", "messages": [], "stream": True}
        async with self.session.post(self.url, json=asked) as answer:
            text = await answer.text()
        *events, done = [each.removeprefix("data: ") for each in text.split("\n\n") if each]
        said = [json.loads(each)["choices"][0]["delta"]["content"] for each in events]
        return done == "[DONE]" and said == [str(number) for number in range(len(said))]

    async def ask_meanwhile(self) -> None:
        """Send short requests, one after the other, and note who answered."""
        while True:
            async with self.session.post(self.url, json={"model": "chat"}) as answer:
                await answer.read()
                who = answer.headers.get("x-engine", "nobody")
                self.others[who if answer.status == 200 else f"status {answer.status}"] += 1
            await asyncio.sleep(0.03)

    async def report(self, number: int) -> None:
        """Have the agent say who is busy: another one each time, so that weights move."""
        samples = []
        for index, name in enumerate((*PRIMARY, *FALLBACK)):
            if name in self.down:
                samples.append(self.agent.sample(name, state=pb.ENGINE_STATE_DOWN))
            else:
                is_busy = name in PRIMARY and (number + index) % 3 != 0
                samples.append(self.agent.sample(name, **(BUSY if is_busy else IDLE)))
        await self.agent.send(*samples)

    async def report_until(self, probe: Callable[[], Awaitable[bool]], *, what: str) -> None:
        """Keep reporting, weights moving on, until something is so."""
        number = 0

        async def now() -> bool:
            nonlocal number
            number += 1
            await self.report(number)
            await asyncio.sleep(0.03)
            return await probe()

        await self.envoy.until(now, what=what)

    async def pushes(self) -> int:
        """Return how many changes the proxy took in so far."""
        return sum((await self.envoy.stats(PUSH_COUNTERS)).values())

    async def served_by(self, name: str) -> bool:
        """Whether the proxy gives requests to an instance."""
        hosts = (await self.envoy.clusters())["chat/primary"]
        port = self.engines[name].port
        (host,) = [h for h in hosts if h["address"]["socket_address"]["port_value"] == port]
        health = host["health_status"]
        return health["eds_health_status"] == "HEALTHY" and not health.get("failed_outlier_check")

    async def drain_and_back(self) -> None:
        """Have an operator drain an instance, and end that again."""
        await self.server.post(f"/drain/{DRAINED}")
        await self.report_until(lambda: self._is_out(DRAINED), what="the drain")
        await self.server.post(f"/undrain/{DRAINED}")
        await self.report_until(lambda: self.served_by(DRAINED), what="the end of the drain")

    async def fail_and_recover(self) -> None:
        """Have an instance fail its new requests and its agent call it down; then all is well again."""
        self.engines[FAULTY].mode = "500"
        self.down.add(FAULTY)
        await self.report_until(lambda: self._is_out(FAULTY), what="the fault")
        self.engines[FAULTY].mode = "ok"
        self.down.clear()

        async def is_healthy() -> bool:
            return bool(self.server.named("instance_healthy", instance=FAULTY))

        await self.report_until(is_healthy, what="the recovery")

    async def _is_out(self, name: str) -> bool:
        return not await self.served_by(name)


async def live_streams(
    folder: Path,
    *,
    streams: int,
    pushes: int,
    delta: bool = False,
    first_tier: Mapping[str, Any] | None = None,
) -> LiveRun:
    """Keep streams open across weight pushes, a drain, a fault and its recovery.

    Args:
        folder: For files of the server and of Envoy.
        streams: How many; they are spread over all instances of the first tier.
        pushes: The proxy takes in at least this many before the drain and the fault.
        delta: Which protocol the proxy speaks.
        first_tier: More of the first tier's configuration.
    """
    run = LiveRun(streams)
    async with _scene(folder, delta=delta, first_tier=first_tier or {}) as scene:
        over = asyncio.Event()
        for engine in scene.engines.values():
            engine.until = over
        running = [asyncio.create_task(scene.stream()) for _ in range(streams)]

        async def all_arrived() -> bool:
            return sum(engine.requests for engine in scene.engines.values()) == streams

        await scene.envoy.until(all_arrived, what="every stream at an engine")
        assert all(scene.engines[name].requests for name in PRIMARY), "an engine without streams"
        started, before = time.monotonic(), await scene.pushes()
        meanwhile = asyncio.create_task(scene.ask_meanwhile())

        async def enough() -> bool:
            return await scene.pushes() - before >= pushes

        await scene.report_until(enough, what=f"{pushes} pushes")
        await scene.drain_and_back()
        await scene.fail_and_recover()
        run.pushes = await scene.pushes() - before
        run.seconds = round(time.monotonic() - started, 1)
        run.ended_early = sum(each.done() for each in running)
        over.set()
        ends = await asyncio.gather(*running, return_exceptions=True)
        run.cut = sum(end is not True for end in ends)
        meanwhile.cancel()
        await asyncio.gather(meanwhile, return_exceptions=True)
        run.others = scene.others
        run.rejected = await scene.envoy.rejected()
    return run


@asynccontextmanager
async def _scene(
    folder: Path, *, delta: bool, first_tier: Mapping[str, Any]
) -> AsyncIterator[_Scene]:
    async with AsyncExitStack() as stack:
        engines = {}
        for name in (*PRIMARY, *FALLBACK):
            engine = ScriptedEngine("m", headers={"x-engine": name}, pause_s=0.1)
            engines[name] = await stack.enter_async_context(scripted_engine(engine))
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(document(engines, first_tier)))
        server = await stack.enter_async_context(
            running_server(config, folder / "state", ["--push-gap-ms", "20"])
        )
        agent = await stack.enter_async_context(connected_agent(server.target))
        await agent.greet(*engines)
        await agent.send(*(agent.sample(name) for name in engines))
        await server.event("server_warm")
        start = bootstrap(
            node_id="live",
            cluster="test",
            xds_host="127.0.0.1",
            xds_port=server.xds_port,
            delta=delta,
        )
        envoy = await stack.enter_async_context(running_envoy(start, folder / "envoy"))
        port = await envoy.listener_port("llm")
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
            )
        )
        yield _Scene(
            server=server,
            envoy=envoy,
            agent=agent,
            engines=engines,
            session=session,
            url=f"http://127.0.0.1:{port}/v1/chat/completions",
        )
