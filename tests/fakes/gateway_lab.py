"""A real Envoy as a gateway with a picker, and two tiers of engines behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.echo_engine import EchoEngine, echo_engine
from tests.fakes.envoy import RealEnvoy
from tests.fakes.inference_gateway import inference_gateway
from tests.fakes.picking import a_desk, running_picker
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from xds_server.core.model import Topology
from xds_server.istio.picker.decide import Desk, PickerOptions
from xds_server.istio.picker.server import PickerServer

PATH = "/v1/chat/completions"
ASK = {"model": "chat", "messages": []}


@dataclass(kw_only=True)
class Lab:
    """A gateway with two engines of the first tier and one of the second."""

    topology: Topology
    desk: Desk
    picker: PickerServer
    envoy: RealEnvoy
    url: str
    engines: dict[str, Any]
    session: aiohttp.ClientSession

    def plan(self, split: Any = None, **numbers: Any) -> None:
        self.desk.heard(self.topology, a_plan(self.topology, split, **numbers))

    async def ask(self, body: Any = ASK, path: str = PATH, **more: Any) -> tuple[int, bytes, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, **more) as answer:
            return answer.status, await answer.read(), answer.headers

    def landed(self, how: str) -> float:
        return self.desk.tally.count("fleet_picker_landings_total", how)

    async def spurious(self) -> int:
        return await self.envoy.stat("http.gateway.ext_proc.spurious_msgs_received")


@asynccontextmanager
async def lab(
    directory: Path,
    *,
    serves: tuple[str, str] = ("chat", "chat"),
    scripted: bool = False,
    options: PickerOptions | None = None,
    **gateway: Any,
) -> AsyncIterator[Lab]:
    """Run one; tiers that serve the model's own name get bodies as they are."""
    async with AsyncExitStack() as stack:
        engines: dict[str, Any] = {}
        for name in ("primary-0", "primary-1", "fallback-0"):
            engines[name] = await stack.enter_async_context(
                scripted_engine(ScriptedEngine(name)) if scripted else echo_engine(EchoEngine())
            )
        ports = [each.port for each in engines.values()]
        topology = a_topology(
            a_model(
                tiers=(
                    a_tier("primary", serves[0], ports[:2]),
                    a_tier("fallback", serves[1], ports[2:]),
                    a_static_tier(),
                )
            )
        )
        desk = a_desk(topology, options=options)
        picker = await stack.enter_async_context(running_picker(desk))
        about = {"picker": [picker.port], "ports": ports, **gateway}
        envoy, url = await stack.enter_async_context(
            inference_gateway(directory / "gateway", **about)
        )
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120))
        )
        yield Lab(
            topology=topology,
            desk=desk,
            picker=picker,
            envoy=envoy,
            url=url,
            engines=engines,
            session=session,
        )
