"""An engine whose behavior a test scripts: answers like an OpenAI server, or fails in a chosen way."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class ScriptedEngine:
    """One HTTP engine on loopback. Change `mode` at any time."""

    model: str
    mode: str = "ok"
    """ok | hang | reset | a status code as text."""
    chunks: int = 3
    pause_s: float = 0.0
    """Between chunks of a stream."""
    until: asyncio.Event | None = None
    """Streams go on until this is set, however many chunks that takes."""
    cut_after: int | None = None
    """A stream breaks off after this many chunks."""
    error_event: bool = False
    """A stream ends in an error event, as vLLM's when its engine process dies."""
    plain_s: float = 0.0
    """How long a request that does not stream takes; its headers come at the end."""
    headers: dict[str, str] = field(default_factory=dict)
    health_mode: str = "ok"
    """What GET /health does, in the words of `mode`."""
    health_s: float = 0.0
    """How long GET /health takes: 1.004 s at least in SGLang."""
    port: int = 0
    requests: int = 0
    """Without those for /health."""
    health_checks: int = 0
    pages: dict[str, str] = field(default_factory=dict)
    """What GET answers by path, whatever the mode: a hung engine's pages stay."""
    absent: frozenset[str] = frozenset()
    """Paths that are answered with 404."""
    last_body: bytes = b""
    last_headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    """In place of the answer of a request that does not stream."""
    in_pieces: bool = False
    """That answer arrives in two pieces, with time between them."""
    bytes_received: int = 0
    _site: web.TCPSite | None = None
    _kept: socket.socket | None = None
    _waiting: list[socket.socket] = field(default_factory=list)

    async def stop_listening(self) -> None:
        """Refuse connections from now on; the port stays taken, or somebody else might answer there."""
        assert self._site is not None
        await self._site.stop()
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", self.port))

    async def stop_accepting(self) -> None:
        """Be a machine that is gone: from now on connections are neither made nor refused."""
        await self.stop_listening()
        assert self._kept is not None
        self._kept.listen(0)
        for _ in range(3):  # more than a queue of none holds
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", self.port))
            self._waiting.append(waiting)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path == "/health":
            return await self._health(request)
        if request.method == "GET" and request.path in self.pages:
            return web.Response(text=self.pages[request.path])
        self.requests += 1
        self.bytes_received += len(body)
        self.last_body, self.last_headers = body, request.headers
        if request.path in self.absent:
            return web.json_response({"error": "no such page"}, status=404)
        if self.mode == "hang":
            await asyncio.sleep(30)
        if self.mode == "reset":
            return _reset(request)
        if self.mode.isdigit():
            error = {"error": self.mode}
            return web.json_response(error, status=int(self.mode), headers=self.headers)
        asked: dict[str, Any] = json.loads(body) if body else {}
        if asked.get("stream"):
            return await self._stream(request)
        await asyncio.sleep(self.plain_s)
        if self.body:
            if self.in_pieces:
                return await self._pieces(request)
            return web.Response(text=self.body, content_type="application/json")
        message = {"role": "assistant", "content": "hello"}
        answer = {"model": self.model, "choices": [{"index": 0, "message": message}]}
        return web.json_response(answer, headers=self.headers)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        self.health_checks += 1
        await asyncio.sleep(30 if self.health_mode == "hang" else self.health_s)
        if self.health_mode == "reset":
            return _reset(request)
        return web.Response(status=int(self.health_mode) if self.health_mode.isdigit() else 200)

    async def _pieces(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        half = len(self.body) // 2
        await response.write(self.body[:half].encode())
        await asyncio.sleep(0.05)
        await response.write(self.body[half:].encode())
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **self.headers})
        await response.prepare(request)
        for index in itertools.count():
            if index >= self.chunks if self.until is None else self.until.is_set():
                break
            chunk = {"model": self.model, "choices": [{"delta": {"content": str(index)}}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            if index + 1 == self.cut_after:
                return _reset(request)
            await asyncio.sleep(self.pause_s)
        if self.error_event:
            error = {"error": {"message": "EngineDeadError", "code": 500}}
            await response.write(f"data: {json.dumps(error)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def _reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def scripted_engine(engine: ScriptedEngine) -> AsyncIterator[ScriptedEngine]:
    """Run an engine on a free port for as long as the block lasts."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.port = runner.addresses[0][1]
    engine._site = site
    try:
        yield engine
    finally:
        await runner.cleanup()
        for kept in (*engine._waiting, *([engine._kept] if engine._kept else [])):
            kept.close()
