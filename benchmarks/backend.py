"""An engine that answers at once, for figures in which the engine must not count."""

from __future__ import annotations

import asyncio

from benchmarks.commands import obey, say

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"choices": []}'


class Engine(asyncio.Protocol):
    """Reads requests with a content-length and answers each."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            lowered = head.lower()
            start = lowered.find(b"content-length:")
            size = int(lowered[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
            if len(rest) < size:
                return
            self._data = rest[size:]
            self._transport.write(ANSWER)


async def serve() -> None:
    """Serve until standard input closes."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    await obey({})
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
