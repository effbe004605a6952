"""istiod's client for configuration (adsc), as far as it can be seen from outside: what it asks, takes and drops.

Written from what a real istiod 1.14.5 was seen to do and what 1.32 has in its source (pkg/adsc, `memory`
config store, aggregate order by creation time):

- one stream for all types, state of the world; it asks for 15 types at once, with a timestamp for a nonce,
  names nothing, and acknowledges every response, whatever is in it;
- an object whose version it has is not looked at; one that its validation refuses stays as it was; one that
  it cannot convert is deleted, and so is one that a response no longer names;
- it is ready once every type was answered; it ends if nobody is there when it starts; later it comes again,
  0.5 s at first, and keeps what it has meanwhile;
- of two VirtualServices for one host and gateway sidecars get the older one's routes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from fleet_protos.istio.mcp.v1alpha1.resource_pb2 import Resource
from fleet_protos.istio.networking.v1alpha3.destination_rule_pb2 import DestinationRule
from fleet_protos.istio.networking.v1alpha3.service_entry_pb2 import ServiceEntry
from fleet_protos.istio.networking.v1alpha3.virtual_service_pb2 import VirtualService
from tests.fakes.waiting import until

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
MESH_CONFIG = "core/v1alpha1/MeshConfig"
BODY = "type.googleapis.com/istio.networking.v1alpha3."
BODIES = {
    "VirtualService": VirtualService,
    "DestinationRule": DestinationRule,
    "ServiceEntry": ServiceEntry,
}


def types_of(version: str) -> list[str]:
    """What it asks for, `version` being that of networking: v1alpha3 until 1.23, v1 from 1.24."""
    return [
        *(f"security.istio.io/v1/{each}" for each in
          ("AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication")),
        *(f"networking.istio.io/{version}/{each}" for each in
          ("DestinationRule", "Gateway", "ServiceEntry", "Sidecar", "VirtualService", "WorkloadEntry",
           "WorkloadGroup")),
        "networking.istio.io/v1alpha3/EnvoyFilter",
        "networking.istio.io/v1beta1/ProxyConfig",
        "telemetry.istio.io/v1/Telemetry",
        "extensions.istio.io/v1alpha1/WasmPlugin",
        "extensions.istio.io/v1alpha1/TrafficExtension",
    ]  # fmt: skip


class IstiodExitedError(Exception):
    """It ended, as it does when a config source is not there at its start."""


@dataclass
class Config:
    """An object as it is in its store."""

    kind: str
    name: str
    version: str
    created: float
    body: Any
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    at: float
    kind: str
    name: str
    what: str
    """added, updated, refused (the old one stays), deleted, unreadable (and deleted)."""


class FakeIstiod:
    """One replica. Make it with `started_istiod`."""

    def __init__(
        self,
        target: str,
        *,
        version: str = "v1",
        sum_is_100: bool = True,
        revision: str = "",
        more_types: tuple[str, ...] = (),
        ping_ms: int | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.target = target
        self.types = [*types_of(version), *more_types]
        self.store: dict[tuple[str, str], Config] = {}
        self.admins: list[Config] = []
        """What other sources have: the mesh admin's."""
        self.changes: list[Change] = []
        self.answered: dict[str, int] = {}
        """Responses by type, on this stream."""
        self.responses: list[tuple[float, DiscoveryResponse]] = []
        self.connections = 0
        self.errors: list[grpc.aio.AioRpcError] = []
        self.on_change: Callable[[Change], None] = lambda _: None
        self._sum_is_100 = sum_is_100
        self._revision = revision
        self._ping_ms = ping_ms
        self._credentials = credentials

    @property
    def is_ready(self) -> bool:
        return all(each in self.answered for each in self.types)

    def kinds(self, kind: str) -> dict[str, Any]:
        return {name: each.body for (of, name), each in self.store.items() if of == kind}

    def routes(self, host: str, gateway: str = "mesh") -> Any:
        """The VirtualService that sidecars get for a host; None = there is none: plain routing."""
        found = [
            each
            for each in [*self.store.values(), *self.admins]
            if each.kind == "VirtualService"
            and host in each.body.hosts
            and gateway in each.body.gateways
        ]
        return min(found, key=lambda each: (each.created, each.name)).body if found else None

    def weights(self, host: str) -> dict[str, int] | None:
        """The weights of the last route of a host, those of zero left out, as in RDS."""
        service = self.routes(host)
        if service is None:
            return None
        parts = service.http[-1].route
        if len(parts) == 1:
            return {parts[0].destination.host: 100}
        return {each.destination.host: each.weight for each in parts if each.weight}

    async def run(self) -> None:
        """Connect, and again when it ends.

        Raises:
            IstiodExitedError: Nobody was there the first time.
        """
        delay_s = 0.5
        while True:
            try:
                await self._stream()
            except grpc.aio.AioRpcError as error:
                self.errors.append(error)
                if not self.connections and error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise IstiodExitedError("MCP: failed running: connection refused") from error
            await asyncio.sleep(delay_s)

    async def _stream(self) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        if self._ping_ms is not None:
            options += [
                ("grpc.keepalive_time_ms", self._ping_ms),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.keepalive_permit_without_calls", 1),
            ]
        channel = (
            grpc.aio.insecure_channel(self.target, options)
            if self._credentials is None
            else grpc.aio.secure_channel(self.target, self._credentials, options)
        )
        async with channel:
            call = channel.stream_stream(METHOD)(wait_for_ready=False)
            await call.write(self._request(MESH_CONFIG, with_node=True))
            for each in self.types:
                await call.write(self._request(each))
            self.connections += 1
            self.answered = {}
            while (raw := await call.read()) is not grpc.aio.EOF:
                response = DiscoveryResponse.FromString(raw)
                self.responses.append((time.monotonic(), response))
                self._take(response)
                self.answered[response.type_url] = self.answered.get(response.type_url, 0) + 1
                ack = DiscoveryRequest(
                    type_url=response.type_url,
                    version_info=response.version_info,
                    response_nonce=response.nonce,
                )
                self._add_node(ack)
                await call.write(ack.SerializeToString())
            if (await call.code()) is not grpc.StatusCode.OK:
                self.errors.append(
                    grpc.aio.AioRpcError(
                        await call.code(), None, None, details=await call.details()
                    )
                )

    def _request(self, type_url: str, *, with_node: bool = False) -> bytes:
        nonce = f"{dt.datetime.now(dt.UTC)} +0000 UTC m=+0.27"
        request = DiscoveryRequest(type_url=type_url, response_nonce=nonce)
        if with_node:
            self._add_node(request)
        return request.SerializeToString()

    def _add_node(self, request: DiscoveryRequest) -> None:
        request.node.id = "sidecar~10.1.2.3~istiod-0.istio-system~istio-system.svc.cluster.local"
        request.node.metadata.update({"GENERATOR": "api", "ISTIO_VERSION": "65536.65536.65536"})
        if self._revision:
            request.node.metadata.update({"ISTIO_REVISION": self._revision})

    # What it makes of a response.

    def _take(self, response: DiscoveryResponse) -> None:
        kind = response.type_url.rpartition("/")[2]
        seen = set()
        for each in response.resources:
            resource = Resource.FromString(each.value)
            name, version = resource.metadata.name, resource.metadata.version
            labels = dict(resource.metadata.labels)
            if labels.get("istio.io/rev", self._revision) != self._revision:
                continue
            body = BODIES.get(resource.body.type_url.removeprefix(BODY))
            if body is None or name.count("/") != 1:
                if self.store.pop((kind, name), None) is not None:
                    self._changed(kind, name, "unreadable")
                continue
            seen.add(name)
            old = self.store.get((kind, name))
            if old is not None and version and old.version == version:
                continue
            new = Config(
                kind, name, version, resource.metadata.create_time.ToSeconds(),
                body.FromString(resource.body.value), labels,
            )  # fmt: skip
            if not self._is_valid(new.body):
                self._changed(kind, name, "refused")
                continue
            self.store[kind, name] = new
            self._changed(kind, name, "added" if old is None else "updated")
        for of, name in list(self.store):
            if of == kind and name not in seen:
                del self.store[of, name]
                self._changed(kind, name, "deleted")

    def _is_valid(self, body: Any) -> bool:
        if not isinstance(body, VirtualService):
            return True
        for route in body.http:
            total = sum(each.weight for each in route.route)
            wrong = total != 100 if self._sum_is_100 and len(route.route) > 1 else not total
            if route.route and wrong:
                return False
            if bool(route.route) == route.HasField("direct_response"):
                return False
        return bool(body.http)

    def _changed(self, kind: str, name: str, what: str) -> None:
        change = Change(time.monotonic(), kind, name, what)
        self.changes.append(change)
        self.on_change(change)


@asynccontextmanager
async def started_istiod(
    target: str, *, waits: bool = True, **options: Any
) -> AsyncIterator[FakeIstiod]:
    """Run a replica for as long as the block lasts; it is ready when the block begins, unless told not to wait."""
    istiod = FakeIstiod(target, **options)
    task = asyncio.create_task(istiod.run(), name="istiod")
    try:
        if waits:
            await until(lambda: istiod.is_ready or task.done(), "istiod to be ready")
            if task.done():
                await task
        yield istiod
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
