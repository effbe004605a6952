"""grpcio's own xDS client against the server: a second opinion on the protocol, beside Envoy's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from tests.fakes.envoy import eventually
from tests.fakes.waiting import PATIENCE_S
from tests.xds.caller import METHOD
from tests.xds.resources import api_listener, cluster, endpoints, route, snapshot
from tests.xds.wire import serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ROUTE, Snapshot
from xds_server.xds.cache import SnapshotCache


@asynccontextmanager
async def backend(name: str) -> AsyncIterator[int]:
    """A gRPC server that tells its name."""

    async def who(_request: bytes, _context: object) -> bytes:
        return name.encode()

    service, _, method = METHOD[1:].partition("/")
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(who)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def caller(xds_port: int) -> AsyncIterator[asyncio.StreamReader]:
    """A gRPC application in its own process; yields what it prints."""
    bootstrap = {
        "xds_servers": [
            {
                "server_uri": f"127.0.0.1:{xds_port}",
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }
        ],
        "node": {"id": "app-1"},
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.xds.caller", "xds:///chat"),
        env=os.environ | {"GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(bootstrap)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        await process.communicate()


async def test_a_grpc_application_follows_the_weights_and_refuses_what_is_invalid() -> None:
    async with backend("big") as big, backend("small") as small:

        def world(weights: dict[str, int]) -> Snapshot:
            return snapshot(
                clusters=[cluster("big"), cluster("small"), cluster("unrelated")],
                endpoints=[endpoints("big", port=big), endpoints("small", port=small)],
                listeners=[api_listener("chat", "routes")],
                routes=[route("routes", weights)],
            )

        cache = SnapshotCache()
        cache.publish(Capability.GRPC, world({"big": 1, "small": 0}))
        async with serving(cache) as (xds, port), caller(port) as said:

            async def line() -> str:
                return (await asyncio.wait_for(said.readline(), PATIENCE_S)).decode().strip()

            assert await line() == "big"
            flips = []
            for turn in range(6):
                name = ("small", "big")[turn % 2]
                started = time.monotonic()
                cache.publish(
                    Capability.GRPC, world({"big": int(name == "big"), "small": int(name != "big")})
                )
                assert await line() == name
                flips.append(time.monotonic() - started)
            assert sorted(flips)[3] < 1.0

            (status,) = xds.status()
            assert status.proxy.capability is Capability.GRPC
            assert not any(each.nacks for each in status.types)
            names = {each.type_url: each.subscribed for each in status.types}
            assert names[CLUSTER] >= 1  # by name: "unrelated" was never asked for
            assert not any(each.wildcard for each in status.types)

            cache.publish(Capability.GRPC, world({"big": 0, "small": 0}))

            async def refused() -> bool:
                entry = next(e for e in xds.status()[0].types if e.type_url == ROUTE)
                return entry.nacks == 1 and "routes" in entry.error_names

            await eventually(refused)
            cache.publish(Capability.GRPC, world({"big": 0, "small": 1}))
            assert await line() == "small"  # nothing else was seen: the last good route was kept
