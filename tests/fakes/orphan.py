"""An Envoy whose control plane was killed: the real server delivered everything, then `kill -9`.

Starting both takes seconds, so one Envoy carries a chain for each case, told apart by domain.

async with orphaned_chains(tmp_path, {"case": Chain()}) as chains:
    chains["case"].big.mode = "500"
    answers = await chains["case"].ask_many(100, stream=True)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.fakes.answer import Answer, client
from tests.fakes.chain import ask
from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.xds_process import running_server
from xds_server.resources.bootstrap import bootstrap

NAMES = ("primary", "fallback", "third", "fourth")
BUSY = "The service is busy."


@dataclass
class Chain:
    """One model: its tiers' engines, what its tiers may be given, and the way to ask it."""

    tiers: list[list[ScriptedEngine]] = field(
        default_factory=lambda: [[ScriptedEngine("llama-3-70b")], [ScriptedEngine("llama-3-8b")]]
    )
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`limit` by tier name."""
    name: str = ""
    session: aiohttp.ClientSession | None = None
    envoy: RealEnvoy | None = None
    base: str = ""

    @property
    def big(self) -> ScriptedEngine:
        """The first engine of the first tier."""
        return self.tiers[0][0]

    @property
    def small(self) -> ScriptedEngine:
        """The first engine of the second tier."""
        return self.tiers[1][0]

    @property
    def engine_requests(self) -> int:
        """How many attempts reached an engine so far."""
        return sum(engine.requests for engines in self.tiers for engine in engines)

    async def ask(self, *, headers: Mapping[str, str] | None = None, **question: Any) -> Answer:
        """Send one request and read its answer to the end."""
        assert self.session is not None
        sent = {"host": f"{self.name}.test", **(headers or {})}
        return await ask(self.session, self.base, headers=sent, **question)

    async def ask_many(self, count: int, *, clients: int = 10, **question: Any) -> list[Answer]:
        """Send requests, each client one after the other; return the answers in their order."""
        turns = iter(range(count))
        answers: list[Answer] = []

        async def client() -> None:
            while next(turns, None) is not None:
                answers.append(await self.ask(**question))

        await asyncio.gather(*(client() for _ in range(clients)))
        return answers

    def document(self) -> dict[str, Any]:
        """Return the model as the configuration has it."""
        listed = [
            {
                "name": name,
                "serves": engines[0].model if engines else name,
                "instances": [
                    {"name": f"{self.name}-{name}-{i}", "address": f"127.0.0.1:{engine.port}"}
                    for i, engine in enumerate(engines)
                ]
                or {"discover": "agents"},  # none registers
                **({"limit": dict(self.limits[name])} if name in self.limits else {}),
            }
            for name, engines in zip(NAMES, self.tiers, strict=False)
        ]
        said = {"choices": [{"message": {"role": "assistant", "content": BUSY}}]}
        return {
            "name": self.name,
            "match": {"domains": [f"{self.name}.test"], "prefix": "/v1/"},
            "tiers": [*listed, {"name": "static", "answer": {"json": said}}],
        }


@asynccontextmanager
async def orphaned_chains(
    directory: Path,
    chains: dict[str, Chain],
    *,
    failures: Mapping[str, Any] | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[dict[str, Chain]]:
    """Run chains whose control plane is dead; header time-out 0.5 s for streams and plain answers.

    Args:
        directory: for files of the server and of Envoy.
        chains: by the name of the model.
        failures: more of `policy.failures`.
        before: done just before the control plane is killed.
    """
    patience = {"header_timeout_s": 0.5, "answer_timeout_s": 0.5, **(failures or {})}
    async with AsyncExitStack() as stack:
        for name, chain in chains.items():
            chain.name = name
            for engines in chain.tiers:
                for engine in engines:
                    await stack.enter_async_context(scripted_engine(engine))
        token = directory / "token"
        token.write_text("t" * 40)
        token.chmod(0o600)
        config = {
            "server": {"agents_token_file": str(token)},
            "listener": {"address": "127.0.0.1", "port": 0},
            "models": [chain.document() for chain in chains.values()],
            "policy": {"failures": patience},
        }
        path = directory / "fleet.yaml"
        path.write_text(yaml.safe_dump(config))
        server = await stack.enter_async_context(running_server(path, directory / "state"))
        told = bootstrap(
            node_id="orphan", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
        )
        envoy = await stack.enter_async_context(running_envoy(told, directory / "envoy"))
        port = await envoy.listener_port("llm")
        session = await stack.enter_async_context(client())
        for chain in chains.values():
            chain.session, chain.envoy = session, envoy
            chain.base = f"http://127.0.0.1:{port}"

            async def served(chain: Chain = chain) -> bool:
                return (await chain.ask()).status == 200

            await envoy.until(served, what=f"a first answer of {chain.name}")
        assert await envoy.rejected() == {}
        if before is not None:
            await before()
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL

        async def alone() -> bool:
            return await envoy.stat("control_plane.connected_state") == 0

        await envoy.until(alone, what="the loss of the control plane")
        yield chains
        assert "envoy bug" not in envoy.log().lower()
