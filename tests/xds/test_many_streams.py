"""Many streams: none lost, none left behind, nobody held up by others."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import grpc
import pytest

from tests.fakes.envoy import eventually
from tests.xds.resources import cluster, endpoints, snapshot
from tests.xds.wire import RawStream, serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, Snapshot
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.server import XdsServer
from xds_server.xds.syncz import SyncState
from xds_server.xds.transport import options

GROUP = Capability.AGGREGATE
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def world(timeout_s: float = 1.0) -> Snapshot:
    return snapshot(
        clusters=[cluster("a", timeout_s=timeout_s)],
        endpoints=[endpoints("a")],
    )


async def gone(xds: XdsServer) -> None:
    async def empty() -> bool:
        return xds.status() == [] and xds.stream_count == 0

    await eventually(empty, what="all streams gone")


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


@pytest.mark.slow
async def test_a_thousand_proxies_that_connect_at_once_are_all_configured() -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with serving(cache) as (xds, port):

        async def configured(number: int) -> RawStream:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION)
            channels.append(channel)
            stream = RawStream(channel)
            stream.node = {"id": f"proxy-{number}"}
            await stream.ask(CLUSTER)
            cds = await stream.response(timeout_s=30)
            await stream.ask(CLUSTER, nonce=cds.nonce)
            return stream

        channels: list[grpc.aio.Channel] = []
        streams = await asyncio.gather(*(configured(number) for number in range(1000)))
        assert len(xds.status()) == 1000
        cache.publish(GROUP, world(2.0))
        versions = await asyncio.gather(*(each.response(timeout_s=30) for each in streams))
        assert len({each.version_info for each in versions}) == 1
        assert len({each.nonce for each in versions}) == 1
        await asyncio.gather(*(each.close() for each in channels))
        await gone(xds)


async def test_a_thousand_connections_leave_no_task_and_no_memory_behind() -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with (
        serving(cache) as (xds, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):

        async def come_and_go(number: int) -> None:
            async with RawStream(
                channel, "DeltaAggregatedResources" if number % 2 else "StreamAggregatedResources"
            ) as stream:
                await stream.ask(CLUSTER)
                await stream.response()
                if number % 3 == 0:
                    cache.publish(GROUP, world(1 + number))  # somebody is always just leaving

        for number in range(100):  # caches and allocators fill once
            await come_and_go(number)
        await gone(xds)
        gc.collect()
        tasks, memory = len(asyncio.all_tasks()), resident_kb()
        for number in range(100, 1100):
            await come_and_go(number)
        await gone(xds)
        gc.collect()
        assert len(asyncio.all_tasks()) <= tasks + 2
        assert resident_kb() - memory < 6_000


async def test_proxies_that_vanish_during_a_push_disturb_nobody() -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with (
        serving(cache) as (xds, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as stays,
    ):
        await stays.ask(CLUSTER)
        first = await stays.response()
        await stays.ask(CLUSTER, nonce=first.nonce)
        for step in range(20):
            leaving = [RawStream(channel) for _ in range(10)]
            for each in leaving:
                await each.ask(CLUSTER)
                await each.response()
            cache.publish(GROUP, world(10 + step))
            for each in leaving:
                each.call.cancel()
            reply = await stays.response()
            await stays.ask(CLUSTER, nonce=reply.nonce)
        assert reply.resources[0].value == cluster("a", timeout_s=29).body

        async def alone() -> bool:
            return len(xds.status()) == 1

        await eventually(alone)


async def test_a_client_that_stops_reading_holds_up_nobody_and_piles_up_nothing() -> None:
    big = "x" * 20_000
    cache = SnapshotCache()

    def large(step: int) -> Snapshot:
        return snapshot(endpoints=[endpoints("a", port=step)], clusters=[cluster(big)])

    cache.publish(GROUP, large(1))
    async with (
        serving(cache) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION) as slow_channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION) as channel,
        RawStream(slow_channel) as slow,
        RawStream(channel) as quick,
    ):
        for stream in (slow, quick):
            await stream.ask(ENDPOINT, ["a"])
        for step in range(2, 102):
            reply = await quick.response()
            await quick.ask(ENDPOINT, ["a"], nonce=reply.nonce)
            cache.publish(GROUP, large(step))
        assert (await quick.response()).resources[0].value == endpoints("a", port=101).body
        stalled = await slow.response()
        await slow.ask(ENDPOINT, ["a"], nonce=stalled.nonce)
        assert (await slow.response()).resources[0].value == endpoints("a", port=101).body
        await slow.nothing()


async def test_a_bug_in_a_push_ends_the_stream_and_is_reported() -> None:
    reported = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with (
        serving(cache) as (xds, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as stream,
    ):
        await stream.ask(CLUSTER)
        await stream.ask(CLUSTER, nonce=(await stream.response()).nonce)
        broken = world(5)
        object.__setattr__(broken, "of_type", None)

        async def acked() -> bool:
            return xds.status()[0].types[0].state is SyncState.SYNCED

        await eventually(acked)
        cache.publish(GROUP, broken)
        with pytest.raises(EOFError):
            await stream.response()
    # What a test before left to the garbage collector may be told here too.
    assert TypeError in map(type, reported)


def test_the_options_that_keep_a_storm_from_losing_streams_are_set() -> None:
    chosen = dict(options())
    assert chosen["grpc.server.max_pending_requests"] >= 10_000
    assert chosen["grpc.server.max_pending_requests_hard_limit"] >= 10_000
    assert chosen["grpc.http2.bdp_probe"] == 0
    assert chosen["grpc.so_reuseport"] == 0
    assert chosen["grpc.http2.max_ping_strikes"] == 0


async def test_a_client_that_pings_often_is_not_cut_off() -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    pinging = [
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", 100),
    ]
    async with (
        serving(cache) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=pinging) as channel,
        RawStream(channel) as stream,
    ):
        await stream.ask(CLUSTER)
        await stream.response()
        await stream.nothing(quiet_s=1.5)
        await stream.ask(ENDPOINT, ["a"])
        assert (await stream.response()).type_url == ENDPOINT
