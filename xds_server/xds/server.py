"""The xDS services over gRPC: ADS and one service per type, SotW and delta, as handlers of bytes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION_CONFIG,
    LISTENER,
    ROUTE,
    Snapshot,
)
from xds_server.xds.answer import Protocol
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.csds import CSDS_SERVICE, csds_handler
from xds_server.xds.node import Proxy
from xds_server.xds.observer import Observer, Silent
from xds_server.xds.rendered import Rendered
from xds_server.xds.stream import Stream
from xds_server.xds.syncz import ProxyStatus, status_of

ADS_SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"

SERVICES: dict[str, dict[str, tuple[Protocol, str | None]]] = {
    ADS_SERVICE: {
        "StreamAggregatedResources": (Protocol.SOTW, None),
        "DeltaAggregatedResources": (Protocol.DELTA, None),
    },
    "envoy.service.cluster.v3.ClusterDiscoveryService": {
        "StreamClusters": (Protocol.SOTW, CLUSTER),
        "DeltaClusters": (Protocol.DELTA, CLUSTER),
    },
    "envoy.service.endpoint.v3.EndpointDiscoveryService": {
        "StreamEndpoints": (Protocol.SOTW, ENDPOINT),
        "DeltaEndpoints": (Protocol.DELTA, ENDPOINT),
    },
    "envoy.service.listener.v3.ListenerDiscoveryService": {
        "StreamListeners": (Protocol.SOTW, LISTENER),
        "DeltaListeners": (Protocol.DELTA, LISTENER),
    },
    "envoy.service.route.v3.RouteDiscoveryService": {
        "StreamRoutes": (Protocol.SOTW, ROUTE),
        "DeltaRoutes": (Protocol.DELTA, ROUTE),
    },
    "envoy.service.extension.v3.ExtensionConfigDiscoveryService": {
        "StreamExtensionConfigs": (Protocol.SOTW, EXTENSION_CONFIG),
        "DeltaExtensionConfigs": (Protocol.DELTA, EXTENSION_CONFIG),
    },
}
"""Every discovery service with its methods: protocol and, unless aggregated, the one type."""

SERVICE_NAMES = (*SERVICES, CSDS_SERVICE)
"""Full names of all services of `XdsServer.handlers`, for health and reflection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsSettings:
    """What an operator may choose."""

    max_streams: int = 100_000
    """Streams beyond this are refused with RESOURCE_EXHAUSTED."""


class XdsServer:
    """Serves the snapshots of a cache to any number of streams. Used on one event loop."""

    def __init__(
        self,
        cache: SnapshotCache,
        *,
        settings: XdsSettings | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._cache = cache
        self._settings = settings or XdsSettings()
        self._observer: Observer = observer or Silent()
        self._rendered = Rendered()
        self._groups: dict[Capability, dict[Stream, None]] = {each: {} for each in Capability}
        self._count = 0
        self._nodes: Counter[str] = Counter()
        self._keepers: Counter[str] = Counter()
        self.on_proxies: Callable[[], None] = lambda: None
        """Told that a proxy came or went which may keep limits."""
        cache.subscribe(self._publish, parts=self._repart)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of all discovery services and of CSDS, to be added to a `grpc.aio` server."""
        discovery = [
            grpc.method_handlers_generic_handler(
                service,
                {
                    method: grpc.stream_stream_rpc_method_handler(self._method(protocol, only))
                    for method, (protocol, only) in methods.items()
                },
            )
            for service, methods in SERVICES.items()
        ]
        return [*discovery, csds_handler(self.status)]

    @property
    def stream_count(self) -> int:
        """Streams that are open, those of unknown proxies included."""
        return self._count

    def knows(self, node_id: str) -> bool:
        """Whether a proxy of this id has a stream."""
        return node_id in self._nodes

    def status(self) -> list[ProxyStatus]:
        """Return the state of every stream whose proxy is known, in order of connection."""
        now = asyncio.get_running_loop().time()
        streams = [each for group in self._groups.values() for each in group]
        streams.sort(key=lambda each: each.opened_at)
        return [status_of(each, now, self._part(each)) for each in streams]

    def _part(self, stream: Stream) -> float | None:
        assert stream.proxy is not None
        return self._cache.part(stream.proxy) if stream.keeps_limits else None

    def _served(self, stream: Stream) -> Snapshot | None:
        """Return what a stream is served; who has no listener of ours needs no part of the limits."""
        assert stream.proxy is not None
        if stream.keeps_limits:
            return self._cache.served(stream.proxy)
        return self._cache.snapshot(stream.proxy.capability)

    def _method(self, protocol: Protocol, only: str | None) -> Callable[[Any, Any], Any]:
        # A function, not a `partial`: gRPC looks at it for every stream, which takes a partial far longer.
        async def serve(_requests: Any, context: Any) -> None:
            await self._serve(context, protocol=protocol, only=only)

        return serve

    async def _serve(self, context: Any, *, protocol: Protocol, only: str | None) -> None:
        if self._count >= self._settings.max_streams:
            reason = f"too many streams: this server serves {self._settings.max_streams}"
            self._observer.refused(proxy=None, peer=context.peer(), reason=reason)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        stream = Stream(
            context,
            protocol=protocol,
            only=only,
            rendered=self._rendered,
            observer=self._observer,
        )
        self._count += 1
        self._observer.stream_opened(protocol=protocol)
        try:
            await stream.serve(self._join)
        finally:
            self._count -= 1
            if stream.proxy is not None:
                self._leave(stream, stream.proxy)
            stream.close()
            self._observer.stream_closed(protocol=protocol, proxy=stream.proxy)

    def proxies(self) -> set[str]:
        """Return the node ids of the proxies that are connected: those that have listeners, and so keep limits."""
        return {
            stream.proxy.id
            for capability, group in self._groups.items()
            if capability is not Capability.GRPC
            for stream in group
            if stream.proxy is not None and stream.keeps_limits
        }

    def accepted(self) -> set[str]:
        """Return the node ids of the proxies that have accepted the limits that they are served, on all their streams."""
        behind = {
            stream.proxy.id
            for group in self._groups.values()
            for stream in group
            if stream.proxy is not None and not stream.has_accepted(EXTENSION_CONFIG)
        }
        return self.proxies() - behind

    def shared(self) -> dict[str, int]:
        """Return the node ids by which several streams that keep limits go now, and how many of them."""
        return {name: streams for name, streams in self._keepers.items() if streams > 1}

    def _join(self, stream: Stream) -> Snapshot | None:
        assert stream.proxy is not None
        self._groups[stream.proxy.capability][stream] = None
        self._nodes[stream.proxy.id] += 1
        if stream.keeps_limits:
            self._keepers[stream.proxy.id] += 1
            if self._keepers[stream.proxy.id] == 1:
                self.on_proxies()
        return self._served(stream)

    def _leave(self, stream: Stream, proxy: Proxy) -> None:
        if self._groups[proxy.capability].pop(stream, self) is self:
            return  # It never joined.
        if _is_last(self._nodes, proxy.id):
            del self._nodes[proxy.id]
        if stream.keeps_limits and _is_last(self._keepers, proxy.id):
            del self._keepers[proxy.id]
            self.on_proxies()

    def _publish(self, capability: Capability, snapshot: Snapshot) -> None:
        self._rendered.clear()
        if snapshot.limiters is None:
            for stream in self._groups[capability]:
                stream.push(snapshot)
        else:
            self._push(self._groups[capability])

    def _repart(self, changed: Collection[str]) -> None:
        ids = frozenset(changed)
        for group in self._groups.values():
            self._push(each for each in group if each.proxy is not None and each.proxy.id in ids)

    def _push(self, streams: Iterable[Stream]) -> None:
        """Give each stream what its proxy is served: not the same for all of a group."""
        for stream in streams:
            served = self._served(stream)
            if served is not None:
                stream.push(served)


def _is_last(count: Counter[str], name: str) -> bool:
    """Count one less; return whether it was the last."""
    count[name] -= 1
    return not count[name]
