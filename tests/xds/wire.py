"""A scripted client over real gRPC: raw streams that read like a dialog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import grpc
from envoy.service.discovery.v3 import discovery_pb2
from google.rpc import status_pb2

from tests.fakes.waiting import PATIENCE_S
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.server import XdsServer, XdsSettings
from xds_server.xds.transport import TransportSettings, make_server

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
QUIET_S = 0.15


@asynccontextmanager
async def serving(
    cache: SnapshotCache,
    *,
    port: int = 0,
    settings: XdsSettings | None = None,
    observer: Any = None,
    transport: TransportSettings | None = None,
) -> AsyncIterator[tuple[XdsServer, int]]:
    """Run the xDS server on loopback for as long as the block lasts."""
    xds = XdsServer(cache, settings=settings, observer=observer)
    server = make_server(transport)
    server.add_generic_rpc_handlers(xds.handlers())
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield xds, bound
    finally:
        await server.stop(0)


class RawStream:
    """One stream of bytes; SotW or delta by its method."""

    def __init__(self, channel: Any, method: str = "StreamAggregatedResources") -> None:
        path = method if method.startswith("/") else ADS + method
        self.call = channel.stream_stream(path)()
        self._delta = "Delta" in path
        self.node: dict[str, Any] | None = {"id": "proxy-1"}
        self._reading: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def ask(
        self,
        type_url: str,
        names: Iterable[str] = (),
        *,
        unsubscribe: Iterable[str] = (),
        known: Mapping[str, str] | None = None,
        version: str = "",
        nonce: str = "",
        error: str | None = None,
    ) -> None:
        detail = None if error is None else status_pb2.Status(code=3, message=error)
        request: Any
        if self._delta:
            request = discovery_pb2.DeltaDiscoveryRequest(
                type_url=type_url,
                resource_names_subscribe=names,
                resource_names_unsubscribe=unsubscribe,
                initial_resource_versions=known or {},
                response_nonce=nonce,
                error_detail=detail,
                node=self.node,
            )
        else:
            request = discovery_pb2.DiscoveryRequest(
                type_url=type_url,
                resource_names=names,
                version_info=version,
                response_nonce=nonce,
                error_detail=detail,
                node=self.node,
            )
        self.node = None
        await self.call.write(request.SerializeToString())

    async def response(self, *, timeout_s: float = PATIENCE_S) -> Any:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.call.read())
        try:
            raw = await asyncio.wait_for(asyncio.shield(self._reading), timeout_s)
        except grpc.aio.AioRpcError as error:
            self._reading = None
            raise EOFError(f"{error.code()}: {error.details()}") from None
        self._reading = None
        if raw is grpc.aio.EOF:
            raise EOFError(f"{await self.call.code()}: {await self.call.details()}")
        kind = (
            discovery_pb2.DeltaDiscoveryResponse if self._delta else discovery_pb2.DiscoveryResponse
        )
        return kind.FromString(raw)

    async def nothing(self, *, quiet_s: float = QUIET_S) -> None:
        """Fail when a response comes within the time."""
        try:
            got = await self.response(timeout_s=quiet_s)
        except TimeoutError:
            return
        raise AssertionError(f"expected nothing, got {got}")
