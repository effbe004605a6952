"""Servers that answer every request with their name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web


class NamedBackend:
    """Make it with `named_backends`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0

    async def _answer(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NamedBackend]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def named_backends(*names: str) -> AsyncIterator[list[NamedBackend]]:
    """Run one server per name for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(NamedBackend(name).running()) for name in names]
