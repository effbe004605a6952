"""The only module of the probe that knows Envoy's messages: bytes to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError

from xds_server.istio.probe.seen import Seen, SeenRoute
from xds_server.resources.snapshot import ROUTE

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


class BadMessageError(ValueError):
    """Bytes that are not the message that was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """One response: route configurations by name, each with the routes of its hosts by domain."""

    version: str
    nonce: str
    configs: Mapping[str, Mapping[str, Seen]]


def node(*, node_id: str, metadata: Mapping[str, Any]) -> bytes:
    """Return a serialized node."""
    made = base_pb2.Node(id=node_id, user_agent_name="gpu-xds-probe")
    made.metadata.update(metadata)
    raw: bytes = made.SerializeToString()
    return raw


def ask(names: Iterable[str], *, node: bytes = b"", version: str = "", nonce: str = "") -> bytes:
    """Return a request for route configurations, or the ACK of a response.

    Args:
        names: All that are wanted.
        node: As from `node`; needed in the first request only.
        version: Of the response that is accepted.
        nonce: Of the response that is accepted.
    """
    request = discovery_pb2.DiscoveryRequest(
        type_url=ROUTE, resource_names=names, version_info=version, response_nonce=nonce
    )
    if node:
        request.node.ParseFromString(node)
    raw: bytes = request.SerializeToString()
    return raw


def parse(raw: bytes) -> Routes | None:
    """Parse a response; None if it is about another type.

    Raises:
        BadMessageError: No response, or a resource in it is no route configuration.
    """
    try:
        response = discovery_pb2.DiscoveryResponse.FromString(raw)
        if response.type_url != ROUTE:
            return None
        tables = [
            route_pb2.RouteConfiguration.FromString(each.value) for each in response.resources
        ]
    except DecodeError as error:
        raise BadMessageError(f"istiod sent something else than routes: {error}") from None
    return Routes(
        version=response.version_info,
        nonce=response.nonce,
        configs={table.name: _hosts(table) for table in tables},
    )


def _hosts(table: Any) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for host in table.virtual_hosts:
        routes = tuple(_route(each) for each in host.routes)
        for domain in host.domains:
            found.setdefault(domain, routes)
    return found


def _route(route: route_components_pb2.Route) -> SeenRoute:
    kind = route.WhichOneof("action")
    if kind == "direct_response":
        return SeenRoute(name=route.name, status=route.direct_response.status)
    if kind != "route":
        return SeenRoute(name=route.name)
    action = route.route
    if action.WhichOneof("cluster_specifier") == "weighted_clusters":
        weighted = action.weighted_clusters.clusters
        clusters = tuple((each.name, each.weight.value) for each in weighted)
        return SeenRoute(name=route.name, clusters=clusters)
    return SeenRoute(name=route.name, clusters=((action.cluster, 1),) if action.cluster else ())
