"""The baseline of the xDS figures: a tuned grpc.aio server that only moves bytes.

No sessions, no protocol rules, no snapshot: it answers the first request of a type with prepared
bytes, sends prepared bytes to every stream when told to, keeps one response in flight per stream
(latest wins) and parses ACKs, as any server must. Its responses have the size of the product's own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from pathlib import Path
from typing import Any

import grpc

from benchmarks.commands import obey, pusher, say
from benchmarks.messages import DeltaRequest, Request, response_bytes

OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
]


class Bare(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Both ADS variants over one table of prepared bodies."""

    def __init__(self, bodies: dict[str, list[tuple[str, bytes]]]) -> None:
        self._bodies = bodies
        self._current: dict[tuple[bool, str], bytes] = {}
        self._streams: set[tuple[bool, set[str], asyncio.Event]] = set()
        self._count = 0
        for type_url in bodies:
            self._stamp(type_url)

    def _stamp(self, type_url: str) -> str:
        self._count += 1
        version = f"{self._count:016x}"
        for delta in (False, True):
            self._current[delta, type_url] = response_bytes(
                type_url, version, self._bodies[type_url], delta=delta
            )
        return version

    def push(self, type_url: str) -> dict[str, Any]:
        """Send a new version of a type to every stream."""
        started = time.monotonic()
        version = self._stamp(type_url)
        for _, dirty, event in self._streams:
            dirty.add(type_url)
            event.set()
        return {"version": version, "at": started}

    async def swap(self, command: dict[str, Any]) -> dict[str, Any]:
        """Take other bodies for a type and push them."""
        type_url = command["type_url"]
        self._bodies[type_url] = [(name, bytes.fromhex(body)) for name, body in command["bodies"]]
        return self.push(type_url)

    def service(self, details: Any) -> Any:
        """Route both ADS methods to the same loop."""
        delta = details.method.endswith("DeltaAggregatedResources")

        async def stream(_: Any, context: Any) -> None:
            await self._serve(context, delta=delta)

        return grpc.stream_stream_rpc_method_handler(stream, None, None)

    async def _serve(self, context: Any, *, delta: bool) -> None:
        parse = (DeltaRequest if delta else Request).FromString
        dirty: set[str] = set()
        event = asyncio.Event()
        entry = _Entry((delta, dirty, event))
        self._streams.add(entry)

        async def write() -> None:
            while True:
                await event.wait()
                event.clear()
                while dirty:
                    type_url = dirty.pop()
                    await context.write(self._current[delta, type_url])

        writer = asyncio.create_task(write())
        subscribed: set[str] = set()
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                request = parse(data)
                if request.type_url not in subscribed:
                    subscribed.add(request.type_url)
                    dirty.add(request.type_url)
                    event.set()
        finally:
            writer.cancel()
            self._streams.discard(entry)


class _Entry(tuple):  # type: ignore[type-arg]
    """A stream's state, hashed by identity."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


async def serve(bodies: dict[str, list[tuple[str, bytes]]]) -> None:
    """Serve until standard input closes; commands as in `benchmarks.commands`."""
    bare = Bare(bodies)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers([bare])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    say({"port": port})
    await obey({**pusher(bare.push), "swap": bare.swap})
    await server.stop(0)


def main() -> None:
    """Run from `benchmarks.rig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setup", type=Path, required=True)
    setup = json.loads(parser.parse_args().setup.read_text())
    bodies = {
        type_url: [(name, bytes.fromhex(body)) for name, body in pairs]
        for type_url, pairs in setup["bodies"].items()
    }
    asyncio.run(serve(bodies))


if __name__ == "__main__":
    main()
