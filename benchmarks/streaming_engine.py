"""An engine that streams: every request gets so many events, each with the time at which it left."""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.commands import obey, say

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def _stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, events: int, gap_s: float
) -> None:
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await _body(reader, head.lower())
            writer.write(HEAD)
            start = loop.time()
            for number in range(events):
                await asyncio.sleep(max(0.0, start + number * gap_s - loop.time()))
                event = b"data: %d\n\n" % time.monotonic_ns()
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _body(reader: asyncio.StreamReader, head: bytes) -> None:
    if b"chunked" in head:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    elif (start := head.find(b"content-length:")) >= 0:
        await reader.readexactly(int(head[start + 15 :].split(b"\r\n", 1)[0]))


async def serve(events: int, gap_s: float) -> None:
    """Serve until standard input closes."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _stream(reader, writer, events=events, gap_s=gap_s)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    await obey({})
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
