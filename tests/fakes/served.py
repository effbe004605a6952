"""A snapshot at a real Envoy that takes it from the least of servers: what labs of chains and routes stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.fakes.answer import client
from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.tiny_ads import TinyAds, tiny_ads
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.snapshot import Snapshot


@dataclass(frozen=True)
class Served:
    """The server, the proxy, and how a client reaches it."""

    ads: TinyAds
    envoy: RealEnvoy
    session: aiohttp.ClientSession
    port: int


@asynccontextmanager
async def served(snapshot: Snapshot, directory: Path) -> AsyncIterator[Served]:
    """Serve a snapshot to one Envoy for as long as the block lasts."""
    async with (
        tiny_ads(snapshot) as ads,
        running_envoy(
            bootstrap(node_id="lab", cluster="test", xds_host="127.0.0.1", xds_port=ads.port),
            directory,
        ) as envoy,
        client() as session,
    ):
        yield Served(ads, envoy, session, await envoy.listener_port("llm"))


@asynccontextmanager
async def all_running(engines: Iterable[ScriptedEngine]) -> AsyncIterator[None]:
    """Run engines for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        for each in engines:
            await stack.enter_async_context(scripted_engine(each))
        yield
