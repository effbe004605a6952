"""The endpoint picker in a process of its own, with a plan that gives every request to one engine."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.commands import obey, say
from benchmarks.picker_grpc import GrpcPickerServer
from tests.fakes.picking import a_desk
from tests.fakes.plans import a_model, a_static_tier, a_tier, a_topology
from xds_server.istio.picker.server import PickerServer
from xds_server.xds.transport import tune_gc


async def serve(port: int, serves: str, transport: str) -> None:
    """Serve until standard input closes; `transport` is `framed` (the product's own) or `grpc`."""
    tiers = (a_tier("primary", serves, [port]), a_static_tier())
    desk = a_desk(a_topology(a_model("gpt-bench", tiers=tiers)))
    server = PickerServer(desk) if transport == "framed" else GrpcPickerServer(desk)
    got = server.listen("127.0.0.1", 0)
    await server.start()
    tune_gc()
    say({"port": got})
    await obey({})
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
