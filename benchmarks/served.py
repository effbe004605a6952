"""The product's xDS server as a benchmark process, with plans moved on command.

Everything from the plan to the bytes on the socket is the product's own: builder, cache, sessions,
transport. A push moves one model's tier weights (RDS) or every endpoint weight (EDS); it is answered with the version and
the time *before* anything was built.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.commands import obey, pusher, say
from benchmarks.fleet import Plans, topology
from xds_server.core.policy import Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import ROUTE
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.server import XdsServer
from xds_server.xds.transport import make_server, tune_gc


async def serve() -> None:
    """Serve until standard input closes."""
    fleet = topology()
    plans = Plans(fleet)
    builder = SnapshotBuilder(fleet, Policy(), Capability.COMPOSITE)
    cache = SnapshotCache()
    cache.publish(Capability.COMPOSITE, builder.build(plans.plan))
    xds = XdsServer(cache)
    server = make_server()
    server.add_generic_rpc_handlers(xds.handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tune_gc()

    def push(type_url: str) -> dict[str, Any]:
        plan = plans.move_tier() if type_url == ROUTE else plans.move_endpoints()
        started = time.monotonic()
        snapshot = builder.build(plan)
        cache.publish(Capability.COMPOSITE, snapshot)
        return {"version": snapshot.of_type(type_url).version, "at": started}

    say({"port": port})
    await obey(pusher(push))
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
