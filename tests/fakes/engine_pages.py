"""A real HTTP server that answers with the pages a test puts into it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from aiohttp import web

PAGES = Path(__file__).parent.parent / "data" / "engines"


def page(name: str) -> str:
    """Return a captured or written page by file name."""
    return (PAGES / name).read_text(encoding="utf-8")


class EnginePages:
    """Serves `pages` by path; `status`, `hold` and `stop()` make it misbehave."""

    def __init__(self, pages: dict[str, str] | None = None) -> None:
        self.pages = pages or {}
        self.status: dict[str, tuple[int, str]] = {}
        self.headers: dict[str, str] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        """Cleared: connections are taken and nothing is answered."""
        self.requests: list[str] = []
        self.connections: set[object] = set()
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.hold.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests.append(request.path_qs)
        self.connections.add(request.transport)
        await self.hold.wait()
        if request.path in self.status:
            status, body = self.status[request.path]
            return web.Response(status=status, text=body, headers=self.headers)
        if request.path not in self.pages:
            return web.Response(status=404)
        return web.Response(text=self.pages[request.path], headers=self.headers)
