"""The least that Envoy needs of an ADS server: what the tests of resources stand on.

It answers each subscription once and pushes what `set` changes, in order. It is no model of the product's
server: no delta, no back-pressure, no isolation of a NACK (it only remembers them).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from xds_server.resources.snapshot import PUSH_ORDER, Snapshot

_METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


class TinyAds(grpc.GenericRpcHandler):
    """Serves one snapshot to every stream."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.port = 0
        self.snapshot = snapshot
        self.nacks: list[str] = []
        self.server: grpc.aio.Server | None = None
        self._streams: list[asyncio.Queue[DiscoveryRequest | str]] = []
        self._unanswered: set[tuple[str, str]] = set()

    async def is_settled(self) -> bool:
        """Whether every response was answered, and nothing else waits to be sent."""
        return not self._unanswered and all(stream.empty() for stream in self._streams)

    def set(self, snapshot: Snapshot) -> None:
        """Serve another snapshot; only types that changed are sent."""
        before, self.snapshot = self.snapshot, snapshot
        for type_url in PUSH_ORDER:
            if before.of_type(type_url).version != snapshot.of_type(type_url).version:
                for stream in self._streams:
                    stream.put_nowait(type_url)

    async def stop(self) -> None:
        """Be gone, as after a crash."""
        if self.server is not None:
            await self.server.stop(0)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != _METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._stream, DiscoveryRequest.FromString, DiscoveryResponse.SerializeToString
        )

    async def _stream(
        self, requests: AsyncIterator[DiscoveryRequest], _context: object
    ) -> AsyncIterator[DiscoveryResponse]:
        inbox: asyncio.Queue[DiscoveryRequest | str] = asyncio.Queue()
        self._streams.append(inbox)

        async def read() -> None:
            async for request in requests:
                inbox.put_nowait(request)

        reader = asyncio.create_task(read(), name="tiny-ads-reader")
        names: dict[str, list[str]] = {}
        try:
            while True:
                event = await inbox.get()
                if isinstance(event, str):
                    if event in names:
                        yield self._response(event, names[event])
                    continue
                self._unanswered.discard((event.type_url, event.response_nonce))
                if event.HasField("error_detail"):
                    self.nacks.append(f"{event.type_url}: {event.error_detail.message}")
                    continue
                wanted = list(event.resource_names)
                if names.get(event.type_url) == wanted and event.response_nonce:
                    continue  # an ACK
                names[event.type_url] = wanted
                yield self._response(event.type_url, wanted)
        finally:
            self._streams.remove(inbox)
            reader.cancel()

    def _response(self, type_url: str, names: list[str]) -> DiscoveryResponse:
        kind = self.snapshot.of_type(type_url)
        self._unanswered.add((type_url, kind.version))
        response = DiscoveryResponse(
            type_url=type_url, version_info=kind.version, nonce=kind.version
        )
        for name, resource in kind.resources.items():
            if not names or name in names:
                response.resources.add(type_url=type_url, value=resource.body)
        return response


@asynccontextmanager
async def tiny_ads(snapshot: Snapshot) -> AsyncIterator[TinyAds]:
    """Serve a snapshot on a free port for as long as the block lasts."""
    ads = TinyAds(snapshot)
    ads.server = server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([ads])
    ads.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield ads
    finally:
        await server.stop(0)
