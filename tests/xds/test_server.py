"""The services over real gRPC: good clients, bad ones, and what is seen of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.status.v3 import csds_pb2
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.fakes.envoy import eventually
from tests.xds.resources import cluster, endpoints, listener, route, snapshot
from tests.xds.wire import RawStream, serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.health import add_health_and_reflection
from xds_server.xds.server import SERVICE_NAMES, XdsServer, XdsSettings
from xds_server.xds.syncz import SyncState
from xds_server.xds.transport import TransportSettings, make_server

AGGREGATE = Capability.AGGREGATE
A = snapshot(
    clusters=[cluster("a")],
    endpoints=[endpoints("a")],
    listeners=[listener("l")],
    routes=[route("r", {"a": 1})],
)
PLAIN_METHODS = [
    (CLUSTER, "cluster", "Clusters", []),
    (ENDPOINT, "endpoint", "Endpoints", ["a"]),
    (LISTENER, "listener", "Listeners", []),
    (ROUTE, "route", "Routes", ["r"]),
]
both = pytest.mark.parametrize(
    "method", ["StreamAggregatedResources", "DeltaAggregatedResources"], ids=["sotw", "delta"]
)


class Journal:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, event: str) -> Any:
        return lambda **facts: self.lines.append((event, facts))

    def reasons(self) -> list[str]:
        return [facts["reason"] for event, facts in self.lines if event == "ignored"]

    def events(self) -> list[str]:
        return [event for event, _ in self.lines]


@asynccontextmanager
async def world(
    content: Any = A, **settings: Any
) -> AsyncIterator[tuple[SnapshotCache, XdsServer, grpc.aio.Channel]]:
    cache = SnapshotCache()
    if content is not None:
        cache.publish(AGGREGATE, content)
    async with (
        serving(cache, **settings) as (xds, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield cache, xds, channel


async def refusal(stream: RawStream) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(EOFError):
        await stream.response()
    return await stream.call.code(), await stream.call.details()


@both
async def test_a_client_is_configured_and_follows_a_change(method: str) -> None:
    async with world() as (cache, _, channel), RawStream(channel, method) as stream:
        await stream.ask(CLUSTER)
        cds = await stream.response()
        assert (cds.type_url, len(cds.resources)) == (CLUSTER, 1)
        await stream.ask(CLUSTER, nonce=cds.nonce)
        await stream.ask(ENDPOINT, ["a"])
        eds = await stream.response()
        await stream.ask(ENDPOINT, ["a"] if "Stream" in method else [], nonce=eds.nonce)
        await stream.nothing()
        cache.publish(
            AGGREGATE, snapshot(clusters=[cluster("a")], endpoints=[endpoints("a", weight=2)])
        )
        update = await stream.response()
        assert update.type_url == ENDPOINT
        assert update.nonce != eds.nonce


@pytest.mark.parametrize("kind", ["Stream", "Delta"])
@pytest.mark.parametrize(("type_url", "folder", "method", "names"), PLAIN_METHODS)
async def test_each_type_has_a_service_of_its_own_where_the_type_may_be_left_out(
    kind: str, type_url: str, folder: str, method: str, names: list[str]
) -> None:
    path = f"/envoy.service.{folder}.v3.{method[:-1]}DiscoveryService/{kind}{method}"
    async with world() as (_, _, channel), RawStream(channel, path) as stream:
        await stream.ask("", names)
        response = await stream.response()
        assert (response.type_url, len(response.resources)) == (type_url, 1)


async def test_r03_another_type_on_a_stream_of_one_type_is_refused() -> None:
    path = "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters"
    async with world() as (_, _, channel), RawStream(channel, path) as stream:
        await stream.ask(ENDPOINT, ["a"])
        code, text = await refusal(stream)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert ENDPOINT in text
        assert CLUSTER in text


@both
async def test_r01_the_node_is_needed_once_per_stream(method: str) -> None:
    async with world() as (_, xds, channel), RawStream(channel, method) as stream:
        await stream.ask(CLUSTER)
        assert stream.node is None
        await stream.response()
        await stream.ask(ENDPOINT, ["a"])
        await stream.response()
        assert [each.proxy.id for each in xds.status()] == ["proxy-1"]


@both
@pytest.mark.parametrize(
    ("node", "text"),
    [
        (None, "node is missing"),
        ({"cluster": "c"}, "node.id is missing"),
        ({"id": "x" * 1025}, "node.id has 1025 bytes: expected at most 1024"),
        ({"id": "a\nb"}, "control characters"),
    ],
    ids=["no node", "no id", "long id", "odd id"],
)
async def test_r02_a_bad_node_is_told_what_is_wrong(method: str, node: Any, text: str) -> None:
    async with world() as (_, _, channel), RawStream(channel, method) as stream:
        stream.node = node
        await stream.ask(CLUSTER)
        code, details = await refusal(stream)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in details


@both
async def test_r03_a_request_without_a_type_is_refused_on_ads(method: str) -> None:
    async with world() as (_, _, channel), RawStream(channel, method) as stream:
        await stream.ask("")
        code, details = await refusal(stream)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "type_url is missing" in details


@both
async def test_r04_an_unknown_type_disturbs_nobody_and_is_counted(method: str) -> None:
    journal = Journal()
    async with (
        world(observer=journal) as (_, _, channel),
        RawStream(channel, method) as stream,
    ):
        await stream.ask("type.googleapis.com/who.knows.v3.Thing")
        await stream.ask(CLUSTER)
        assert (await stream.response()).type_url == CLUSTER
        await stream.nothing()
    assert journal.reasons() == ["unknown_type"]


@both
async def test_bytes_that_are_no_request_are_refused_and_others_go_on(method: str) -> None:
    async with (
        world() as (_, _, channel),
        RawStream(channel, method) as good,
        RawStream(channel, method) as bad,
    ):
        await bad.call.write(b"\xff\xff\xff")
        code, details = await refusal(bad)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "DiscoveryRequest" in details
        await good.ask(CLUSTER)
        assert (await good.response()).type_url == CLUSTER


async def test_a_request_that_is_too_large_is_refused() -> None:
    cache = SnapshotCache()
    xds = XdsServer(cache)
    server = make_server(TransportSettings(max_receive_bytes=100_000))
    server.add_generic_rpc_handlers(xds.handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as stream,
    ):
        await stream.ask(ENDPOINT, ["x" * 1000] * 200)
        code, _ = await refusal(stream)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await server.stop(0)


async def test_a_reconnect_with_sixty_thousand_versions_fits() -> None:
    known = {
        f"outbound|80||service-{each}.namespace.svc.cluster.local": "0" * 16
        for each in range(60_000)
    }
    async with (
        world() as (_, _, channel),
        RawStream(channel, "DeltaAggregatedResources") as stream,
    ):
        await stream.ask(CLUSTER, known=known)
        response = await stream.response()
        assert len(response.removed_resources) == 60_000


async def test_streams_beyond_the_limit_are_refused() -> None:
    async with (
        world(settings=XdsSettings(max_streams=1)) as (_, _, channel),
        RawStream(channel) as first,
    ):
        await first.ask(CLUSTER)
        await first.response()
        async with RawStream(channel) as second:
            code, _ = await refusal(second)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@both
async def test_r28_two_streams_of_one_node_live_apart(method: str) -> None:
    async with world() as (cache, xds, channel), RawStream(channel, method) as new:
        async with RawStream(channel, method) as old:
            await old.ask(CLUSTER)
            await old.response()
            await new.ask(CLUSTER)
            first = await new.response()
            await new.ask(CLUSTER, nonce=first.nonce)
            assert len(xds.status()) == 2

        async def one_left() -> bool:
            return len(xds.status()) == 1

        await eventually(one_left)
        cache.publish(AGGREGATE, snapshot(clusters=[cluster("a", timeout_s=2)]))
        assert (await new.response()).type_url == CLUSTER


@both
async def test_before_the_first_snapshot_streams_stay_open_and_silent(method: str) -> None:
    async with world(None) as (cache, xds, channel), RawStream(channel, method) as stream:
        await stream.ask(CLUSTER)
        await stream.nothing()
        assert xds.status()[0].types[0].state is SyncState.NOT_SENT
        cache.publish(AGGREGATE, A)
        assert len((await stream.response()).resources) == 1


async def test_a_client_that_ends_its_half_ends_the_stream() -> None:
    async with world() as (_, xds, channel), RawStream(channel) as stream:
        await stream.ask(CLUSTER)
        await stream.response()
        await stream.call.done_writing()
        with pytest.raises(EOFError):
            await stream.response()
        assert xds.status() == []


@pytest.mark.parametrize(
    ("node", "capability"),
    [
        ({"id": "x", "user_agent_name": "gRPC C-core linux"}, Capability.GRPC),
        (
            {
                "id": "x",
                "user_agent_name": "envoy",
                "extensions": [{"name": "envoy.clusters.composite"}],
            },
            Capability.COMPOSITE,
        ),
        ({"id": "x", "user_agent_name": "envoy"}, Capability.AGGREGATE),
        ({"id": "x"}, Capability.AGGREGATE),
    ],
    ids=["grpc", "new envoy", "old envoy", "unknown"],
)
async def test_a_proxy_gets_the_resources_of_its_group(node: Any, capability: Capability) -> None:
    cache = SnapshotCache()
    for each in Capability:
        cache.publish(each, snapshot(clusters=[cluster(each.value)]))
    async with (
        serving(cache) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel) as stream,
    ):
        stream.node = node
        await stream.ask(CLUSTER)
        response = await stream.response()
        assert capability.value.encode() in response.resources[0].value


async def test_an_aged_proxy_is_regrouped_when_it_reconnects_with_new_facts() -> None:
    cache = SnapshotCache()
    for each in Capability:
        cache.publish(each, snapshot(clusters=[cluster(each.value)]))
    async with (
        serving(cache) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        for extensions, group in (([], "aggregate"), (["envoy.clusters.composite"], "composite")):
            async with RawStream(channel) as stream:
                stream.node = {"id": "x", "extensions": [{"name": each} for each in extensions]}
                await stream.ask(CLUSTER)
                assert group.encode() in (await stream.response()).resources[0].value


async def test_status_tells_sent_acked_and_refused_per_type() -> None:
    journal = Journal()
    async with (
        world(observer=journal) as (cache, xds, channel),
        RawStream(channel) as stream,
    ):
        await stream.ask(CLUSTER)
        cds = await stream.response()
        (status,) = xds.status()
        assert [each.state for each in status.types] == [SyncState.STALE]
        await stream.ask(CLUSTER, nonce=cds.nonce, version=cds.version_info)

        async def state(wanted: SyncState) -> bool:
            return xds.status()[0].types[0].state is wanted

        await eventually(lambda: state(SyncState.SYNCED))
        cache.publish(AGGREGATE, snapshot(clusters=[cluster("a", timeout_s=2)]))
        bad = await stream.response()
        await stream.ask(CLUSTER, nonce=bad.nonce, error="a: timeout too long")
        await eventually(lambda: state(SyncState.ERROR))
        entry = xds.status()[0].types[0]
        assert entry.acked_version == cds.version_info
        assert entry.sent_version == entry.error_version == bad.version_info
        assert (entry.error, entry.error_names, entry.nacks) == ("a: timeout too long", ("a",), 1)
        fetch = channel.unary_unary(
            "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
            request_serializer=csds_pb2.ClientStatusRequest.SerializeToString,
            response_deserializer=csds_pb2.ClientStatusResponse.FromString,
        )
        (config,) = (await fetch(csds_pb2.ClientStatusRequest())).config
        assert config.node.id == "proxy-1"
        (generic,) = config.generic_xds_configs
        assert generic.config_status == csds_pb2.ERROR
        assert generic.error_state.details == "a: timeout too long"
        one = csds_pb2.ClientStatusRequest()
        one.node_matchers.add().node_id.exact = "somebody else"
        assert not (await fetch(one)).config
    assert journal.events()[:2] == ["stream_opened", "request"]
    assert {"response_sent", "acked", "nacked"} <= set(journal.events())


async def test_csds_streams_and_refuses_matchers_it_does_not_know() -> None:
    async with world() as (_, _, channel):
        call = channel.stream_stream(
            "/envoy.service.status.v3.ClientStatusDiscoveryService/StreamClientStatus",
            request_serializer=csds_pb2.ClientStatusRequest.SerializeToString,
            response_deserializer=csds_pb2.ClientStatusResponse.FromString,
        )()
        await call.write(csds_pb2.ClientStatusRequest())
        assert len((await call.read()).config) == 0
        odd = csds_pb2.ClientStatusRequest()
        odd.node_matchers.add().node_id.prefix = "a"
        await call.write(odd)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_health_and_reflection_are_served_beside_the_bytes_handlers() -> None:
    server = make_server()
    server.add_generic_rpc_handlers(XdsServer(SnapshotCache()).handlers())
    health = await add_health_and_reflection(server, SERVICE_NAMES)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        ads = health_pb2.HealthCheckRequest(service=SERVICE_NAMES[0])
        assert (await check(ads)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await health.set(serving=True)
        whole = health_pb2.HealthCheckRequest()
        assert (await check(whole)).status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await call.read()).list_services_response.service
        assert set(SERVICE_NAMES) <= {each.name for each in listed}
        for name in SERVICE_NAMES:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            assert (await call.read()).HasField("file_descriptor_response")
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    await server.stop(0)


async def test_two_servers_cannot_take_the_same_port() -> None:
    first, second = make_server(), make_server()
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    with pytest.raises(RuntimeError, match="Failed to bind"):
        second.add_insecure_port(f"127.0.0.1:{port}")
    await first.stop(0)
    await second.stop(0)


async def test_a_server_that_stops_ends_its_streams() -> None:
    journal = Journal()
    cache = SnapshotCache()
    cache.publish(AGGREGATE, A)
    async with serving(cache, observer=journal) as (_, port):
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        stream = RawStream(channel)
        await stream.ask(CLUSTER)
        await stream.response()
    with pytest.raises((EOFError, grpc.aio.AioRpcError)):
        await stream.response()
    await channel.close()
    assert journal.events()[-1] == "stream_closed"


async def test_streams_and_pushes_at_once_leave_everyone_on_the_last_version() -> None:
    async with world() as (cache, _, channel):

        async def follow() -> bytes:
            async with RawStream(channel) as stream:
                await stream.ask(CLUSTER)
                while True:
                    reply = await stream.response()
                    await stream.ask(CLUSTER, nonce=reply.nonce)
                    if reply.resources[0].value == cluster("a", timeout_s=30).body:
                        return reply.version_info

        followers = [asyncio.ensure_future(follow()) for _ in range(20)]
        for timeout in range(2, 31):
            cache.publish(AGGREGATE, snapshot(clusters=[cluster("a", timeout_s=timeout)]))
            await asyncio.sleep(0)
        assert len(set(await asyncio.gather(*followers))) == 1


async def test_a_push_of_another_type_during_a_write_goes_out_without_waiting_for_an_ack() -> None:
    async with world() as (cache, _, channel), RawStream(channel) as stream:
        await stream.ask(CLUSTER)
        await stream.ask(ENDPOINT, ["a"])
        cds, eds = await stream.response(), await stream.response()
        cache.publish(
            AGGREGATE, snapshot(clusters=[cluster("a")], endpoints=[endpoints("a", port=1)])
        )
        await stream.ask(ENDPOINT, ["a"], nonce=eds.nonce)
        eds = await stream.response()
        for step in range(2, 30):
            await stream.ask(CLUSTER, nonce=cds.nonce)
            await stream.ask(ENDPOINT, ["a"], nonce=eds.nonce)
            await stream.nothing(quiet_s=0.01)
            other = [cluster("a"), cluster("b", timeout_s=step)]
            cache.publish(
                AGGREGATE, snapshot(clusters=other, endpoints=[endpoints("a", port=step - 1)])
            )
            await asyncio.sleep(0)
            cache.publish(
                AGGREGATE, snapshot(clusters=other, endpoints=[endpoints("a", port=step)])
            )
            cds, eds = await stream.response(), await stream.response()
            assert (cds.type_url, eds.type_url) == (CLUSTER, ENDPOINT)


@both
async def test_r14_the_wait_for_a_silent_proxy_ends_by_itself(method: str, monkeypatch) -> None:
    monkeypatch.setattr("xds_server.xds.exchange.GATE_S", 0.3)
    async with world() as (_, _, channel), RawStream(channel, method) as stream:
        await stream.ask(CLUSTER)
        await stream.ask(ROUTE, ["r"])
        assert (await stream.response()).type_url == CLUSTER
        await stream.nothing(quiet_s=0.05)
        assert (await stream.response()).type_url == ROUTE


def test_the_wire_form_of_a_response_is_what_the_library_would_make() -> None:
    from xds_server.xds.proto import with_nonce

    bare = discovery_pb2.DiscoveryResponse(version_info="v", type_url="t").SerializeToString()
    expected = discovery_pb2.DiscoveryResponse(version_info="v", type_url="t", nonce="n")
    parsed: Message = discovery_pb2.DiscoveryResponse.FromString(with_nonce(bare, "n"))
    assert parsed == expected
    delta = discovery_pb2.DeltaDiscoveryResponse.FromString(with_nonce(b"", "n"))
    assert delta.nonce == "n"
