"""The names that gateways, probes and the endpoint picker protocol ask about, with gRPC's own client."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fakes.picking import a_desk, running_picker
from tests.fakes.plans import a_topology
from xds_server.istio.picker.server import EXT_PROC_SERVICE

STATUS = health_pb2.HealthCheckResponse
NAMES = ("", "readiness", EXT_PROC_SERVICE)


async def check(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_liveness_is_always_and_the_rest_when_it_is_ready():
    async with (
        running_picker(a_desk(a_topology())) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        for ready in (True, False, True):
            server.set_ready(ready=ready)
            expected = STATUS.SERVING if ready else STATUS.NOT_SERVING
            for name in NAMES:
                assert await check(stub, name) == expected
            assert await check(stub, "liveness") == STATUS.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(stub, "nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_who_watches_is_told_each_change_once():
    async with (
        running_picker(a_desk(a_topology())) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        stranger = stub.Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert (await watching.read()).status == STATUS.SERVING
        assert (await stranger.read()).status == STATUS.SERVICE_UNKNOWN
        server.set_ready(ready=True)
        server.set_ready(ready=False)
        server.set_ready(ready=False)
        assert (await watching.read()).status == STATUS.NOT_SERVING
        server.set_ready(ready=True)
        assert (await watching.read()).status == STATUS.SERVING
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.read(), 0.05)
        watching.cancel()
        stranger.cancel()


async def test_a_message_that_is_none_is_refused():
    async with (
        running_picker(a_desk(a_topology())) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
