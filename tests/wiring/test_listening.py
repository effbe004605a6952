"""Sockets that servers are given."""

from __future__ import annotations

import asyncio
import socket

from xds_server.listening import bound


async def test_what_is_sent_on_a_connection_does_not_wait_for_what_was_sent_before():
    taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            own = transport.get_extra_info("socket")
            taken.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            assert isinstance(transport, asyncio.Transport)
            transport.close()

    listening = bound("127.0.0.1", 0, purpose="tests", flag="")
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Server, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        assert await taken
        writer.close()
        await writer.wait_closed()
