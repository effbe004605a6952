"""Bootstraps for a real Envoy that takes everything from one control plane on loopback."""

from __future__ import annotations

from typing import Any

_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_TYPE = "type.googleapis.com/"


def ads_bootstrap(port: int, *, delta: bool, node_id: str = "envoy-1") -> dict[str, Any]:
    ads = {"ads": {}, "resource_api_version": "V3"}
    return {
        "node": {"id": node_id, "cluster": "test"},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC" if delta else "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [
                    {
                        "envoy_grpc": {
                            "cluster_name": "control_plane",
                            "retry_policy": {
                                "retry_back_off": {
                                    "base_interval": "0.05s",
                                    "max_interval": "0.2s",
                                }
                            },
                        }
                    }
                ],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {"clusters": [_control_plane(port)]},
    }


def per_type_source(*, delta: bool) -> dict[str, Any]:
    """A config source that opens a stream of the type's own service."""
    return {
        "resource_api_version": "V3",
        "api_config_source": {
            "api_type": "DELTA_GRPC" if delta else "GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "control_plane"}}],
        },
    }


def per_type_bootstrap(port: int, *, delta: bool) -> dict[str, Any]:
    """Clusters and listeners on streams of their own services."""
    source = per_type_source(delta=delta)
    return {
        "node": {"id": "envoy-1", "cluster": "test"},
        "dynamic_resources": {"cds_config": source, "lds_config": source},
        "static_resources": {"clusters": [_control_plane(port)]},
    }


def _control_plane(port: int) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "name": "control_plane",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            _HTTP2: {
                "@type": _TYPE + _HTTP2,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "control_plane",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
