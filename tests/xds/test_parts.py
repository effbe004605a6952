"""Each proxy is served its own part of the limits, and nothing is copied per proxy."""

from __future__ import annotations

import pytest
from grpc import aio

from tests.fakes.envoy import eventually
from tests.xds.wire import RawStream, serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import (
    ENDPOINT,
    EXTENSION_CONFIG,
    LISTENER,
    PUSH_ORDER,
    Resource,
    Snapshot,
    TypeSnapshot,
)
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.node import Proxy
from xds_server.xds.syncz import SyncState

GROUP = Capability.AGGREGATE


def limiters(part: float) -> TypeSnapshot:
    return TypeSnapshot(
        EXTENSION_CONFIG, {"limits": Resource.of("limits", f"part {part:g}".encode())}
    )


def world(*, cluster: bytes = b"", limited: bool = True) -> Snapshot:
    types = {PUSH_ORDER[0]: TypeSnapshot(PUSH_ORDER[0], {"c": Resource.of("c", cluster)})}
    if limited:
        return Snapshot({**types, EXTENSION_CONFIG: limiters(1.0)}, limiters)
    return Snapshot(types)


def proxy(name: str, capability: Capability = GROUP) -> Proxy:
    return Proxy(name, "", "envoy", "", capability)


def served(cache: SnapshotCache, name: str) -> bytes | None:
    snapshot = cache.served(proxy(name))
    return snapshot and snapshot.of_type(EXTENSION_CONFIG).resources["limits"].body


def test_without_a_division_everybody_gets_the_whole():
    cache = SnapshotCache()
    assert cache.served(proxy("a")) is None
    cache.publish(GROUP, world(limited=False))
    assert cache.part(proxy("a")) is None
    cache.publish(GROUP, world())
    assert cache.part(proxy("a")) == 1.0
    assert served(cache, "a") == b"part 1"


def test_a_proxy_waits_for_its_part_where_there_are_limits():
    cache = SnapshotCache()
    cache.divide({})
    cache.publish(GROUP, world())
    assert served(cache, "a") is None
    cache.divide({"a": 0.25})
    assert served(cache, "a") == b"part 0.25"
    cache.publish(GROUP, world(limited=False))
    assert cache.served(proxy("b")) is not None


def test_equal_parts_share_one_snapshot_also_after_the_next_publication():
    cache = SnapshotCache()
    cache.divide({"a": 0.5, "b": 0.5})
    for cluster in (b"x", b"y"):
        cache.publish(GROUP, world(cluster=cluster))
        one, other = cache.served(proxy("a")), cache.served(proxy("b"))
        assert one is other is not None
        assert one.of_type(PUSH_ORDER[0]).resources["c"].body == cluster


def test_only_those_whose_part_is_another_are_told():
    cache, told = SnapshotCache(), []
    cache.subscribe(lambda *_: None, parts=told.append)
    cache.divide({"a": 0.5, "b": 0.5})
    cache.divide({"a": 0.5, "b": 0.25, "c": 0.25})
    assert told == [["a", "b"], ["b", "c"]]


@pytest.mark.parametrize("method", ["StreamAggregatedResources", "DeltaAggregatedResources"])
async def test_a_new_division_is_pushed_alone(method: str) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    cache.divide({"proxy-1": 0.5, "other": 0.5})
    async with (
        serving(cache) as (xds, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel, method) as stream,
    ):
        comings = []
        xds.on_proxies = lambda: comings.append(xds.proxies())
        await stream.ask(EXTENSION_CONFIG, ["limits"])
        first = await stream.response()
        names = ["limits"] if hasattr(first, "version_info") else []
        version = getattr(first, "version_info", "")
        await stream.ask(EXTENSION_CONFIG, names, version=version, nonce=first.nonce)
        assert xds.proxies() == {"proxy-1"}
        assert [each.part for each in xds.status()] == [0.5]
        cache.divide({"proxy-1": 1.0})
        second = await stream.response()
        assert second.type_url == EXTENSION_CONFIG
        assert b"part 1" in second.SerializeToString()
        await stream.nothing()
    assert comings[0] == {"proxy-1"}


async def test_two_proxies_with_one_id_are_counted_until_one_of_them_goes() -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    cache.divide({"proxy-1": 1.0})
    async with (
        serving(cache) as (xds, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as one,
    ):
        await one.ask(EXTENSION_CONFIG, ["limits"])
        await one.response()
        assert xds.shared() == {}
        async with RawStream(channel) as other:
            await other.ask(EXTENSION_CONFIG, ["limits"])
            await other.response()
            assert xds.shared() == {"proxy-1": 2}
            assert xds.proxies() == {"proxy-1"}

        async def alone() -> bool:
            return xds.shared() == {}

        await eventually(alone, what="one of them is gone")
        assert xds.proxies() == {"proxy-1"}


async def test_a_refused_part_is_kept_out_and_the_last_good_one_stays() -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    cache.divide({"proxy-1": 0.5})
    async with (
        serving(cache) as (xds, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as stream,
    ):
        await stream.ask(EXTENSION_CONFIG, ["limits"])
        first = await stream.response()
        await stream.ask(
            EXTENSION_CONFIG, ["limits"], version=first.version_info, nonce=first.nonce
        )
        cache.divide({"proxy-1": 0.7})
        second = await stream.response()
        await stream.ask(
            EXTENSION_CONFIG,
            ["limits"],
            version=first.version_info,
            nonce=second.nonce,
            error="limits: bad bucket",
        )
        await stream.nothing()
        (status,) = (each for each in xds.status()[0].types if each.type_url == EXTENSION_CONFIG)
        assert (status.state, status.error_names) == (SyncState.ERROR, ("limits",))
        cache.divide({"proxy-1": 0.8})
        assert b"part 0.8" in (await stream.response()).SerializeToString()


async def test_a_sidecar_that_takes_endpoints_alone_needs_no_part_and_takes_none_from_the_others() -> (
    None
):
    cache = SnapshotCache()
    service = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"
    listeners = "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners"
    endpoints = TypeSnapshot(ENDPOINT, {"outbound|80||a": Resource.of("outbound|80||a", b"")})
    cache.publish(GROUP, Snapshot({**world().types, ENDPOINT: endpoints}, limiters))
    cache.divide({"other": 1.0})
    async with (
        serving(cache) as (xds, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel, service) as sidecar,
    ):
        comings = []
        xds.on_proxies = lambda: comings.append(xds.proxies())
        await sidecar.ask(ENDPOINT, ["outbound|80||a"])
        assert (await sidecar.response()).type_url == ENDPOINT
        assert xds.knows("proxy-1")
        assert [each.part for each in xds.status()] == [None]
        assert (xds.proxies(), comings) == (set(), [])
        async with RawStream(channel, listeners) as stream:
            await stream.ask(LISTENER)
            await stream.nothing()
            assert (xds.proxies(), comings) == ({"proxy-1"}, [{"proxy-1"}])
        await sidecar.ask(ENDPOINT, ["outbound|80||a", "outbound|80||b"])
        await sidecar.nothing()
        assert comings == [{"proxy-1"}, set()]


def test_limiters_that_only_differ_in_small_parts_are_served_all_the_same():
    """A larger `largest_request_tokens` moves no bucket of a proxy that is alone, and those of all others."""

    def other(part: float) -> TypeSnapshot:
        body = f"part {part:g}" + ("" if part == 1.0 else ", larger")
        return TypeSnapshot(EXTENSION_CONFIG, {"limits": Resource.of("limits", body.encode())})

    cache = SnapshotCache()
    cache.divide({"a": 0.5, "b": 0.5})
    cache.publish(GROUP, world())
    assert served(cache, "a") == b"part 0.5"
    cache.publish(GROUP, Snapshot(world().types, other))
    assert served(cache, "a") == b"part 0.5, larger"
