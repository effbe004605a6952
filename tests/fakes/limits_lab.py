"""Limits on a real Envoy: one engine per tier, the real xDS server, any number of proxies.

async with limits_lab(tmp_path, limit=Limit(tokens_per_second=1000)) as lab:
    answer = await lab.ask(b'{"max_tokens": 100}')
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.answer import CHAT, Answer, client
from tests.fakes.echo_engine import EchoEngine, echo_engine
from tests.fakes.envoy import RealEnvoy, eventually, running_envoy
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.served import all_running
from tests.xds.wire import serving
from xds_server.core.limits import Limit, Tenants
from xds_server.core.model import RequestClass, Topology
from xds_server.core.policy import AdmissionPolicy, FailurePolicy, Policy
from xds_server.loop.limit_divider import LimitDivider
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.server import XdsServer
from xds_server.xds.syncz import SyncState

JSON = {"content-type": "application/json"}


class LimitsLab:
    """The parts, and short ways to use them."""

    def __init__(
        self,
        *,
        topology: Topology,
        policy: Policy,
        cache: SnapshotCache,
        xds: XdsServer,
        big: ScriptedEngine,
        small: ScriptedEngine,
        session: aiohttp.ClientSession,
        capability: Capability,
    ) -> None:
        self.topology = topology
        self.cache = cache
        self.xds = xds
        self.big = big
        self.small = small
        self.session = session
        self.envoys: dict[str, RealEnvoy] = {}
        self.ports: dict[str, int] = {}
        self.divider: LimitDivider | None = None
        self.start: Callable[[str], Awaitable[None]]
        """Run one more proxy."""
        self.builder = SnapshotBuilder(topology, policy, capability)

    def plan(self, split: Sequence[int] | None = None, **numbers: Any) -> None:
        """Push a plan; see `tests.fakes.plans.a_model_plan`."""
        plan = a_plan(self.topology, split, **numbers)
        self.cache.publish(Capability.COMPOSITE, self.builder.build(plan))

    async def ask(
        self,
        body: Any = b"{}",
        *,
        headers: dict[str, str] | None = None,
        path: str = CHAT,
        proxy: str = "one",
    ) -> Answer:
        """Send one request through a proxy; bytes and async generators are sent as they are."""
        url = f"http://127.0.0.1:{self.ports[proxy]}{path}"
        sent = JSON if headers is None else headers
        async with self.session.post(
            url, data=body, headers=sent, skip_auto_headers=["content-type"]
        ) as response:
            return await Answer.of(response)

    async def ask_at_once(self, count: int, body: bytes = b"{}", **question: Any) -> list[Answer]:
        """Ask at the same time."""
        return await asyncio.gather(*(self.ask(body, **question) for _ in range(count)))

    async def admitted(self, proxy: str, *, of: int) -> int:
        """Ask a proxy for 44 tokens that often, one after the other; return how often it let that through."""
        replies = [await self.ask(b'{"max_tokens": 44}', proxy=proxy) for _ in range(of)]
        return sum(each.status == 200 for each in replies)

    def parts(self) -> dict[str, float | None]:
        """Return what each proxy is served of the limits."""
        return {each.proxy.id: each.part for each in self.xds.status()}

    async def settle(self) -> None:
        """Wait until every proxy has taken all that it is to be served."""

        async def are_synced() -> bool:
            states = [each.state for proxy in self.xds.status() for each in proxy.types]
            return set(states) <= {SyncState.SYNCED, SyncState.NOT_SENT}

        await eventually(are_synced, what="every proxy in sync")

    async def is_ejected(self, tier: str, proxy: str = "one") -> bool:
        """Whether a proxy has ejected every endpoint of a tier."""
        hosts = (await self.envoys[proxy].clusters())[f"chat/{tier}"]
        return all(each["health_status"].get("failed_outlier_check") for each in hosts)

    async def assert_all_accepted(self) -> None:
        """Assert that every Envoy took everything it was sent, and complains of nothing."""
        for envoy in self.envoys.values():
            assert await envoy.rejected() == {}
            assert "hits_addend" not in envoy.log()
            assert "envoy bug" not in envoy.log().lower()


@asynccontextmanager
async def limits_lab(
    directory: Path,
    *,
    limit: Limit | None = None,
    fallback: Limit | None = None,
    primary: Limit | None = None,
    tenants: Tenants | None = None,
    classes: tuple[RequestClass, ...] = (),
    admission: AdmissionPolicy | None = None,
    echo: EchoEngine | None = None,
    divided: bool = False,
    workers: int = 1,
    capability: Capability = Capability.COMPOSITE,
    proxies: Sequence[str] = ("one",),
    delta: bool = False,
) -> AsyncIterator[LimitsLab]:
    """Run a chain of a 70B, an 8B and a static answer with limits, behind one proxy per name.

    With `echo`, that engine is the 70B. `divided`: the proxies share the limits.
    `capability` says what the Envoy shall get, whatever it could.
    """
    policy = Policy(
        failures=FailurePolicy(header_timeout_s=1.0, answer_timeout_s=None),
        admission=admission or AdmissionPolicy(largest_request_tokens=1),
    )
    async with AsyncExitStack() as stack:
        big, small = ScriptedEngine("llama-3-70b"), ScriptedEngine("llama-3-8b")
        await stack.enter_async_context(all_running((big, small)))
        if echo is not None:
            await stack.enter_async_context(echo_engine(echo))
        first_port = big.port if echo is None else echo.port
        model = a_model(
            tiers=[
                replace(a_tier("primary", "llama-3-70b", [first_port]), limit=primary or Limit()),
                replace(a_tier("fallback", "llama-3-8b", [small.port]), limit=fallback or Limit()),
                a_static_tier(),
            ]
        )
        model = replace(model, limit=limit or Limit())
        topology = replace(a_topology(model), tenants=tenants, classes=classes)
        cache = SnapshotCache()
        xds, port = await stack.enter_async_context(serving(cache))
        session = await stack.enter_async_context(client())
        lab = LimitsLab(
            topology=topology,
            policy=policy,
            cache=cache,
            xds=xds,
            big=big,
            small=small,
            session=session,
            capability=capability,
        )
        if divided:
            lab.divider = LimitDivider(
                cache=cache,
                proxies=xds.proxies,
                accepted=xds.accepted,
                policy=lambda: policy.admission,
                clock=time.monotonic,
            )
            xds.on_proxies = lab.divider.changed.set
            dividing = asyncio.create_task(lab.divider.run(), name="limits")
            stack.callback(dividing.cancel)
        lab.plan()

        async def start(name: str) -> None:
            config = bootstrap(
                node_id=name, cluster="test", xds_host="127.0.0.1", xds_port=port, delta=delta
            )
            envoy = await stack.enter_async_context(
                running_envoy(config, directory / name, concurrency=workers)
            )
            lab.envoys[name] = envoy
            lab.ports[name] = await envoy.listener_port("llm")

        lab.start = start
        await asyncio.gather(*(start(name) for name in proxies))
        yield lab
