"""The xDS port of istiod for sidecars, played; and a sidecar that reads what it, or a real one, says.

All routes of a port come in one response, pushed after a debounce; whoever does not accept a response gets no
further one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
ROUTE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"


def route_table(
    port: int, hosts: Mapping[str, Sequence[tuple[str, Mapping[str, int] | int]]]
) -> RouteConfiguration:
    """Make what istiod sends for a port: per host its routes, each clusters with weights, or a status."""
    table = RouteConfiguration(name=str(port))
    for host, routes in hosts.items():
        virtual = table.virtual_hosts.add(name=f"{host}:{port}", domains=[host, f"{host}:{port}"])
        for name, action in routes:
            route = virtual.routes.add(name=name)
            route.match.prefix = "/"
            if isinstance(action, int):
                route.direct_response.status = action
            elif len(action) == 1:
                route.route.cluster = next(iter(action))
            else:
                for cluster, weight in action.items():
                    weighted = route.route.weighted_clusters.clusters.add(name=cluster)
                    weighted.weight.value = weight
    return table


class IstiodPort(grpc.GenericRpcHandler):
    """The port of istiod for sidecars."""

    def __init__(self, *, debounce_s: float = 0.05, token: str = "") -> None:
        self.port = 0
        self.requests: list[DiscoveryRequest] = []
        self.acks: list[str] = []
        self.streams = 0
        self.is_broken = False
        """Send bytes that are no route configuration."""
        self.is_chatty = False
        """Send a response of a type that nobody asked for before each."""
        self.ends_after: int | None = None
        """End a stream after so many responses."""
        self._token = token
        self._debounce_s = debounce_s
        self._tables: dict[str, RouteConfiguration] = {}
        self._pushes: list[asyncio.Event] = []
        self._version = 0

    def set(self, *tables: RouteConfiguration) -> None:
        """Let sidecars have these from now on."""
        self._tables = {each.name: each for each in tables}
        self._version += 1
        for push in self._pushes:
            push.set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._stream, DiscoveryRequest.FromString, DiscoveryResponse.SerializeToString
        )

    async def _stream(
        self, requests: AsyncIterator[DiscoveryRequest], context: Any
    ) -> AsyncIterator[DiscoveryResponse]:
        metadata = dict(context.invocation_metadata())
        if self._token and metadata.get("authorization") != f"Bearer {self._token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authentication failure")
        push, names, free = asyncio.Event(), [""], asyncio.Event()
        self._pushes.append(push)
        self.streams += 1
        sent = 0

        async def read() -> None:
            async for request in requests:
                self.requests.append(request)
                if request.response_nonce:
                    self.acks.append(request.version_info)
                    free.set()
                elif request.type_url == ROUTE:
                    names[:] = request.resource_names
                    free.set()
                    push.set()

        reader = asyncio.create_task(read(), name="fake-istiod-reader")
        try:
            while True:
                await push.wait()
                await free.wait()
                await asyncio.sleep(self._debounce_s)
                push.clear()
                free.clear()
                if self.is_chatty:
                    yield DiscoveryResponse(type_url="type.googleapis.com/unknown", nonce="u")
                yield self._response(names)
                sent += 1
                if sent == self.ends_after:
                    return
        finally:
            self.streams -= 1
            self._pushes.remove(push)
            reader.cancel()

    def _response(self, names: Sequence[str]) -> DiscoveryResponse:
        version = str(self._version)
        response = DiscoveryResponse(type_url=ROUTE, version_info=version, nonce=f"n{version}")
        for name in names:
            if self.is_broken:
                response.resources.add(type_url=ROUTE, value=b"\xff\xff")
            elif name in self._tables:
                response.resources.add().Pack(self._tables[name])
        return response


@asynccontextmanager
async def istiod_port(
    istiod: IstiodPort, *, port: int = 0, credentials: Any = None
) -> AsyncIterator[IstiodPort]:
    """Serve on loopback for as long as the block lasts, with TLS where there are credentials."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([istiod])
    address = f"127.0.0.1:{port}"
    istiod.port = (
        server.add_insecure_port(address)
        if credentials is None
        else server.add_secure_port(address, credentials)
    )
    await server.start()
    try:
        yield istiod
    finally:
        await server.stop(0)


class Sidecar:
    """A client of istiod that asks as sidecars do, accepts everything and keeps what it got."""

    def __init__(self, channel: Any, *, node_id: str = "client-0") -> None:
        self._call = channel.stream_stream(
            METHOD, DiscoveryRequest.SerializeToString, DiscoveryResponse.FromString
        )()
        self._node_id = node_id
        self._names: dict[str, list[str]] = {}
        self._reader = asyncio.create_task(self._read(), name="sidecar")
        self.routes: dict[str, RouteConfiguration] = {}
        self.log: list[tuple[float, dict[str, int]]] = []
        """Every route response: when it came, and the weights of the watched host then."""
        self.watched: tuple[str, str] = ("", "")
        self._changed = asyncio.Event()

    async def ask(self, type_url: str, *names: str) -> None:
        """Subscribe."""
        request = DiscoveryRequest(type_url=type_url, resource_names=names)
        if not self._names:
            request.node.id = f"sidecar~127.0.0.9~{self._node_id}.ai~ai.svc.cluster.local"
            request.node.metadata.update(
                {"NAMESPACE": "ai", "LABELS": {}, "CLUSTER_ID": "Kubernetes"}
            )
        self._names[type_url] = list(names)
        await self._call.write(request)

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def weights(self, host: str, table: str) -> dict[str, int]:
        """Return the clusters of the first route of a host, with weights; empty while it has none."""
        for virtual in self.routes.get(table, RouteConfiguration()).virtual_hosts:
            if host in virtual.domains and virtual.routes:
                action = virtual.routes[0].route
                if action.HasField("weighted_clusters"):
                    clusters = action.weighted_clusters.clusters
                    return {each.name: each.weight.value for each in clusters}
                return {action.cluster: 100}
        return {}

    async def until(
        self, wanted: Mapping[str, int], *, timeout_s: float, since: float | None = None
    ) -> float:
        """Wait for the weights of the watched host; return the seconds that it took."""
        started = time.monotonic() if since is None else since
        deadline = time.monotonic() + timeout_s
        while self.weights(*self.watched) != dict(wanted):
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                have = self.weights(*self.watched)
                raise AssertionError(f"wanted {wanted}, has {have}") from None
        return time.monotonic() - started

    async def _read(self) -> None:
        async for response in self._call:
            if response.type_url == ROUTE:
                for each in response.resources:
                    table = RouteConfiguration.FromString(each.value)
                    self.routes[table.name] = table
                if self.watched[0]:
                    self.log.append((time.monotonic(), self.weights(*self.watched)))
            await self._call.write(
                DiscoveryRequest(
                    type_url=response.type_url,
                    version_info=response.version_info,
                    response_nonce=response.nonce,
                    resource_names=self._names.get(response.type_url, []),
                )
            )
            self._changed.set()


@asynccontextmanager
async def sidecar(
    port: int, *, host: str = "", table: str = "", node_id: str = "client-0"
) -> AsyncIterator[Sidecar]:
    """Be a sidecar that watches the routes of a host."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        made = Sidecar(channel, node_id=node_id)
        made.watched = (host, table)
        try:
            if table:
                await made.ask(ROUTE, table)
            yield made
        finally:
            await made.close()
