"""A real Envoy that rewrites bodies, in front of engines that give back what they got."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.fakes.echo_engine import EchoEngine, echo_engine
from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.plans import a_plan
from tests.fakes.tiny_ads import TinyAds, tiny_ads
from xds_server.core.model import Topology
from xds_server.core.policy import Policy
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client got."""

    status: int
    body: bytes
    headers: dict[str, str]


class RewritingProxy:
    """One Envoy, and how to ask it."""

    def __init__(
        self, envoy: RealEnvoy, ads: TinyAds, session: aiohttp.ClientSession, port: int
    ) -> None:
        self.envoy = envoy
        self.ads = ads
        self._session = session
        self._base = f"http://127.0.0.1:{port}"

    async def ask(
        self,
        path: str,
        body: bytes | AsyncIterable[bytes] | None,
        *,
        method: str = "POST",
        **headers: str,
    ) -> Reply:
        """Send a body as it is, whole or in pieces, or none."""
        sent = {"content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = io.BytesIO(body) if isinstance(body, bytes) else body
        async with self._session.request(
            method, self._base + path, data=data, headers=sent
        ) as response:
            text = await response.read()
            return Reply(response.status, text, {k.lower(): v for k, v in response.headers.items()})

    async def assert_all_accepted(self) -> None:
        """Assert that Envoy took everything, and that no Lua failed."""
        assert await self.envoy.rejected() == {}
        assert self.ads.nacks == []
        assert "script log" not in self.envoy.log()


@asynccontextmanager
async def rewriting_proxy(
    directory: Path,
    topology: Topology,
    *,
    policy: Policy | None = None,
    capability: Capability = Capability.COMPOSITE,
) -> AsyncIterator[RewritingProxy]:
    """Run Envoy with a topology's resources for as long as the block lasts."""
    builder = SnapshotBuilder(topology, policy or Policy(), capability)
    async with AsyncExitStack() as stack:
        ads = await stack.enter_async_context(tiny_ads(builder.build(a_plan(topology))))
        config = bootstrap(node_id="lab", cluster="test", xds_host="127.0.0.1", xds_port=ads.port)
        envoy = await stack.enter_async_context(running_envoy(config, directory))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        )
        yield RewritingProxy(envoy, ads, session, await envoy.listener_port("llm"))


@asynccontextmanager
async def echo_engines(count: int) -> AsyncIterator[list[EchoEngine]]:
    """Run several engines for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(echo_engine(EchoEngine())) for _ in range(count)]


def refusal_of(reply: Reply) -> str:
    """Return the code of an error that is shaped as OpenAI's are."""
    assert reply.headers["content-type"] == "application/json"
    error = json.loads(reply.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["code"])
