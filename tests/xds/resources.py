"""Small valid resources, and snapshots of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401  (by name below)
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from google.protobuf.json_format import ParseDict

from xds_server.resources.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION_CONFIG,
    LISTENER,
    ROUTE,
    Resource,
    Snapshot,
    TypeSnapshot,
)

ADS = {"ads": {}, "resource_api_version": "V3"}
_ROUTER = {
    "name": "router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}


def cluster(name: str, *, timeout_s: float = 1.0, config_source: Mapping = ADS) -> Resource:
    message = ParseDict(
        {
            "name": name,
            "type": "EDS",
            "connect_timeout": f"{timeout_s}s",
            "eds_cluster_config": {"eds_config": config_source},
        },
        cluster_pb2.Cluster(),
    )
    return Resource.of(name, message.SerializeToString(deterministic=True))


def endpoints(name: str, *, port: int = 80, weight: int = 1) -> Resource:
    message = ParseDict(
        {
            "cluster_name": name,
            "endpoints": [
                {
                    "locality": {"zone": "a"},
                    "load_balancing_weight": 1,
                    "lb_endpoints": [
                        {
                            "endpoint": {
                                "address": {
                                    "socket_address": {"address": "127.0.0.1", "port_value": port}
                                }
                            },
                            "load_balancing_weight": weight,
                        }
                    ],
                }
            ],
        },
        endpoint_pb2.ClusterLoadAssignment(),
    )
    return Resource.of(name, message.SerializeToString(deterministic=True))


def route(name: str, weights: Mapping[str, int], *, needs: Iterable[str] | None = None) -> Resource:
    message = ParseDict(
        {
            "name": name,
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": ""},
                            "route": {
                                "weighted_clusters": {
                                    "clusters": [
                                        {"name": each, "weight": weight}
                                        for each, weight in weights.items()
                                    ]
                                }
                            },
                        }
                    ],
                }
            ],
        },
        route_pb2.RouteConfiguration(),
    )
    body = message.SerializeToString(deterministic=True)
    return Resource.of(name, body, weights if needs is None else needs)


def listener(name: str, *, stat_prefix: str = "x") -> Resource:
    """A listener by name only: enough for everybody but a real Envoy."""
    message = ParseDict({"name": name, "stat_prefix": stat_prefix}, listener_pb2.Listener())
    return Resource.of(name, message.SerializeToString(deterministic=True))


def http_listener(name: str, route_name: str, *, config_source: Mapping = ADS) -> Resource:
    """A listener that a real Envoy opens, on a port of its choice, with its routes by RDS."""
    manager = ParseDict(
        {
            "stat_prefix": name,
            "rds": {"route_config_name": route_name, "config_source": config_source},
            "http_filters": [_ROUTER],
        },
        http_connection_manager_pb2.HttpConnectionManager(),
    )
    message = listener_pb2.Listener(name=name)
    message.address.socket_address.address = "127.0.0.1"
    message.address.socket_address.port_value = 0
    chain = message.filter_chains.add().filters.add(name="http")
    chain.typed_config.Pack(manager)
    return Resource.of(name, message.SerializeToString(deterministic=True))


def snapshot(
    *,
    clusters: Iterable[Resource] = (),
    endpoints: Iterable[Resource] = (),
    listeners: Iterable[Resource] = (),
    routes: Iterable[Resource] = (),
    filters: Iterable[Resource] = (),
) -> Snapshot:
    kinds = {
        CLUSTER: clusters,
        ENDPOINT: endpoints,
        LISTENER: listeners,
        ROUTE: routes,
        EXTENSION_CONFIG: filters,
    }
    return Snapshot(
        {
            type_url: TypeSnapshot(type_url, {each.name: each for each in resources})
            for type_url, resources in kinds.items()
        }
    )


def api_listener(name: str, route_name: str) -> Resource:
    """A listener as gRPC applications use it: no address, routes by RDS."""
    manager = ParseDict(
        {
            "rds": {"route_config_name": route_name, "config_source": ADS},
            "http_filters": [_ROUTER],
        },
        http_connection_manager_pb2.HttpConnectionManager(),
    )
    message = listener_pb2.Listener(name=name)
    message.api_listener.api_listener.Pack(manager)
    return Resource.of(name, message.SerializeToString(deterministic=True))
