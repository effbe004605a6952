"""The baseline of the telemetry figures: a grpc.aio server that reads, parses and forgets."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from benchmarks.bare_server import OPTIONS
from benchmarks.commands import obey, say
from benchmarks.rig import percentile
from fleet_protos.telemetry.v1 import telemetry_pb2 as wire


async def serve() -> None:
    """Serve until standard input closes."""
    seen: list[float] = []

    async def report(_: Any, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            message = wire.AgentMessage.FromString(data)
            now = time.monotonic()
            seen.extend(now - float(s.engine.detail) for s in message.samples.samples)

    method = grpc.stream_stream_rpc_method_handler(report)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("fleet.telemetry.v1.Telemetry", {"Report": method})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say({"port": port})

    async def ages(_: dict[str, Any]) -> dict[str, Any]:
        taken = seen[:]
        seen.clear()
        if not taken:
            return {"count": 0}
        return {
            "count": len(taken),
            "p50_ms": percentile(taken, 0.5) * 1e3,
            "p99_ms": percentile(taken, 0.99) * 1e3,
            "worst_ms": max(taken) * 1e3,
        }

    await obey({"ages": ages})
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
