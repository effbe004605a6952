"""The log and load services, alone and on a real gRPC server."""

from __future__ import annotations

import grpc
import pytest

from tests.fakes.evidence_bench import Bench
from xds_server.xds.transport import make_server


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
async def served(bench):
    server = make_server()
    server.add_generic_rpc_handlers(bench.server.handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        bench.channel = channel
        yield bench
    await server.stop(None)
