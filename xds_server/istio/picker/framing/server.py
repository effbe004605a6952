"""Connections of gRPC clients on the event loop: what arrives is answered before anything else runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from xds_server.istio.picker.framing.calls import Call, Send, Serve
from xds_server.istio.picker.framing.connection import Connection
from xds_server.istio.picker.framing.frames import Http2Error
from xds_server.istio.picker.framing.kept import Kept

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds, times: a client that vanished without a word is noticed after a minute."""
_USER_TIMEOUT_MS = 60_000
"""... and one that acknowledges nothing of what it is sent, or takes nothing of it, too."""
GREETING_S = 10.0
"""How long a client may take to say that it speaks HTTP/2."""
STEP_S = 0.02


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: FramedServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.TimerHandle | None = None
        self.connection = Connection(
            self._serve,
            max_message_bytes=server.max_message_bytes,
            failed=server.failed,
            kept=server.kept,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        taken = transport.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            taken.setsockopt(socket.IPPROTO_TCP, option, value)
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        self._greeting = self._loop.call_later(GREETING_S, self._hear_greeting)
        self._server.clients.add(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            self.connection.receive(data, self._loop.time())
        except Http2Error as error:
            self._server.refused(self.peer, str(error))
            self.flush()
            self.close()
            return
        if self.connection.output:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.clients.discard(self)
        self._transport = None
        if self._greeting is not None:
            self._greeting.cancel()
        self.connection.close()

    def _hear_greeting(self) -> None:
        if not self.connection.is_greeted:
            self._server.refused(self.peer, f"said nothing of HTTP/2 for {GREETING_S:g} s")
            self.close()

    def pause_writing(self) -> None:
        """Take nothing in while the client does not read: its streams would pile up here."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def peer(self) -> str:
        """Who it is, for the log."""
        return "" if self._transport is None else str(self._transport.get_extra_info("peername"))

    def flush(self) -> None:
        """Send what waits."""
        output = self.connection.output
        if self._transport is not None and output:
            self._transport.write(b"".join(output))
        output.clear()

    def close(self) -> None:
        """Close once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def _serve(self, path: str, send: Send) -> Call | None:
        def send_now(raw: bytes) -> None:
            send(raw)
            self.flush()

        return self._server.serve(path, send_now)


class FramedServer:
    """Serves calls to any number of connections."""

    def __init__(
        self,
        serve: Serve,
        *,
        max_message_bytes: int,
        refused: Callable[[str, str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Serve calls.

        Args:
            serve: Makes the call of a path.
            max_message_bytes: A larger message ends its call.
            refused: Told the peer and the reason when what a client sends ends its connection.
            failed: Told what a call raises.
        """
        self.serve = serve
        self.max_message_bytes = max_message_bytes
        self.refused = refused
        self.failed = failed
        self.kept = Kept()
        self.clients: set[_Client] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve on a socket that is bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), sock=listening, backlog=1024)

    async def stop(self, grace_s: float) -> None:
        """Take no more connections and calls; let the open ones end for so long, then cut them."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for client in list(self.clients):
            client.connection.go_away()
            client.flush()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        while any(each.connection.waits_for for each in self.clients) and loop.time() < end:
            await asyncio.sleep(STEP_S)
        for client in list(self.clients):
            client.close()
        await asyncio.sleep(0)  # transports tell that they are closed
