"""Connections that end without a word."""

from __future__ import annotations

import grpc

from tests.fakes.blackhole import Blackhole
from tests.fakes.envoy import eventually
from tests.xds.resources import cluster, snapshot
from tests.xds.wire import RawStream, serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.transport import TransportSettings


async def test_a_proxy_that_vanished_without_a_word_is_noticed_in_time():
    """Half-open connections are what a dead host or a firewall leaves behind."""
    cache = SnapshotCache()
    cache.publish(Capability.AGGREGATE, snapshot(clusters=[cluster("a")]))
    patience = TransportSettings(keepalive_s=1.0, keepalive_timeout_s=1.0)
    async with (
        serving(cache, transport=patience) as (xds, port),
        Blackhole(port) as between,
        grpc.aio.insecure_channel(between.address) as channel,
        RawStream(channel) as stream,
    ):
        await stream.ask(CLUSTER)
        await stream.response()
        assert xds.stream_count == 1

        between.swallow = True

        async def is_gone() -> bool:
            return xds.stream_count == 0

        await eventually(is_gone, what="the stream ended", timeout_s=30)
