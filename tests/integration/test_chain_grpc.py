"""grpcio's own xDS client follows our weights: a second opinion besides Envoy's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.tiny_ads import tiny_ads
from tests.fakes.waiting import PATIENCE_S
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability

# The bootstrap is read once per process, so the client is a process of its own: it calls and prints
# who answered, one line per call, until its input ends.
CLIENT = """
import sys, grpc
channel = grpc.insecure_channel("xds:///" + sys.argv[1])
call = channel.unary_unary("/v1/complete")
for line in sys.stdin:
    try:
        print(call(b"", timeout=10, wait_for_ready=True).decode(), flush=True)
    except grpc.RpcError as error:
        print("error", error.code(), error.details(), flush=True)
"""


@asynccontextmanager
async def backend(name):
    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            async def answer(request, context):
                return name.encode()

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


class Client:
    def __init__(self, process):
        self.process = process

    async def call(self):
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        return line.decode().strip()

    async def until(self, name):
        async with asyncio.timeout(PATIENCE_S):
            while await self.call() != name:
                pass


@asynccontextmanager
async def xds_client(port, target):
    bootstrap = {
        "xds_servers": [
            {
                "server_uri": f"127.0.0.1:{port}",
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }
        ],
        "node": {"id": "grpc", "cluster": "test"},
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, target),
        env={**os.environ, "GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(bootstrap)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Client(process)
    finally:
        process.stdin.close()
        await process.wait()


async def test_a_grpc_client_follows_tier_weights_endpoint_weights_and_health():
    async with AsyncExitStack() as stack:
        one, two, small = [await stack.enter_async_context(backend(n)) for n in ("1", "2", "8b")]
        model = a_model(
            tiers=[
                a_tier("primary", "llama-3-70b", [one, two]),
                a_tier("fallback", "llama-3-8b", [small]),
                a_static_tier(),
            ],
            domains=["chat.example"],
            prefix="/",
        )
        topology = a_topology(model)
        builder = SnapshotBuilder(topology, Policy(), Capability.GRPC)
        ads = await stack.enter_async_context(tiny_ads(builder.build(a_plan(topology))))
        client = await stack.enter_async_context(xds_client(ads.port, "chat.example"))
        first = [await client.call() for _ in range(20)]
        assert set(first) == {"1", "2"}
        ads.set(builder.build(a_plan(topology, [0, 700, 300])))
        await client.until("8b")
        assert [await client.call() for _ in range(5)] == ["8b"] * 5
        down = {"primary-0": EndpointHealth.UNHEALTHY}
        ads.set(builder.build(a_plan(topology, health=down)))
        await client.until("2")
        assert {await client.call() for _ in range(10)} == {"2"}
        # All static: this client cannot reach that tier, and is never told to go nowhere.
        ads.set(builder.build(a_plan(topology, [0, 0, 1000])))
        await client.until("1")
        assert ads.nacks == []
