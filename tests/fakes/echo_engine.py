"""An engine that gives back what it was given: to see what a proxy made of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class EchoEngine:
    """Answers with the body of the request, or with `status` if that is not 200."""

    status: int = 200
    port: int = 0
    received: list[Received] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.path_qs, headers, body))
        if self.status != 200:
            return web.Response(status=self.status)
        return web.Response(body=body, content_type="application/octet-stream")


@asynccontextmanager
async def echo_engine(engine: EchoEngine) -> AsyncIterator[EchoEngine]:
    """Run an engine on a free port for as long as the block lasts."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.port = runner.addresses[0][1]
    try:
        yield engine
    finally:
        await runner.cleanup()
