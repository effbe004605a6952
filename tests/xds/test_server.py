"""The services over real gRPC."""

from __future__ import annotations

import grpc

from tests.xds.resources import cluster, endpoints, snapshot
from tests.xds.wire import RawStream, serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT
from xds_server.xds.cache import SnapshotCache

AGGREGATE = Capability.AGGREGATE


async def test_a_sotw_client_is_configured_and_follows_a_change() -> None:
    cache = SnapshotCache()
    cache.publish(AGGREGATE, snapshot(clusters=[cluster("a")], endpoints=[endpoints("a")]))
    async with (
        serving(cache) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as stream,
    ):
        await stream.ask(CLUSTER)
        cds = await stream.response()
        assert (cds.type_url, len(cds.resources)) == (CLUSTER, 1)
        await stream.ask(CLUSTER, version=cds.version_info, nonce=cds.nonce)
        await stream.ask(ENDPOINT, ["a"])
        eds = await stream.response()
        await stream.ask(ENDPOINT, ["a"], version=eds.version_info, nonce=eds.nonce)
        await stream.nothing()
        cache.publish(
            AGGREGATE, snapshot(clusters=[cluster("a")], endpoints=[endpoints("a", weight=2)])
        )
        update = await stream.response()
        assert update.type_url == ENDPOINT
        assert update.version_info != eds.version_info
