"""The bootstrap of an Envoy that gets everything else from this control plane."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xds_server.resources.names import CONTROL_PLANE

_TYPE = "type.googleapis.com/"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_INTERNAL_LISTENER = "envoy.extensions.bootstrap.internal_listener.v3.InternalListener"
_UPSTREAM_TLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_MINIMUM_CLUSTERS = (
    "envoy.extensions.config.validators.minimum_clusters.v3.MinimumClustersValidator"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Files as the proxy finds them."""

    ca: str
    """Authorities of the control plane's certificate (PEM)."""
    cert: str | None = None
    """What the proxy shows; None = nothing."""
    key: str | None = None
    server_name: str = ""
    """Whom the certificate must be of; empty = the host of the control plane."""


def bootstrap(
    *,
    node_id: str,
    cluster: str,
    xds_host: str,
    xds_port: int,
    admin_host: str = "127.0.0.1",
    admin_port: int = 9901,
    delta: bool = False,
    metadata: Mapping[str, Any] | None = None,
    initial_fetch_timeout_s: float = 5.0,
    minimum_clusters: int = 1,
    tls: ClientTls | None = None,
) -> dict[str, Any]:
    """Return an Envoy bootstrap as JSON.

    Args:
        node_id: unique among the proxies; what the control plane's pages call it.
        cluster: the group that the proxy belongs to (`node.cluster`).
        xds_host: name or IP address of the control plane.
        xds_port: its xDS port.
        admin_host: where Envoy's admin page listens.
        admin_port: its port; 0 = any free one.
        delta: speak the incremental protocol.
        metadata: more facts about the proxy (`node.metadata`).
        initial_fetch_timeout_s: how long a start waits for clusters and listeners, each. Not 0: that
            waits for ever, and Envoy does not serve until it has stopped waiting.
        minimum_clusters: refuse an answer with fewer clusters, so that a control plane that lost its
            configuration cannot take a working proxy's away; 0 = accept any.
        tls: how the control plane is trusted, and what the proxy shows it; None = no TLS.
    """
    ads = {
        "ads": {},
        "resource_api_version": "V3",
        "initial_fetch_timeout": _seconds(initial_fetch_timeout_s),
    }
    stream: dict[str, Any] = {
        "api_type": "DELTA_GRPC" if delta else "GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [
            {
                "envoy_grpc": {
                    "cluster_name": CONTROL_PLANE,
                    "retry_policy": {
                        "retry_back_off": {"base_interval": "0.250s", "max_interval": "5s"}
                    },
                }
            }
        ],
    }
    if minimum_clusters:
        validator = {
            "@type": _TYPE + _MINIMUM_CLUSTERS,
            "min_clusters_num": minimum_clusters,
        }
        stream["config_validators"] = [
            {
                "name": "envoy.config.validators.minimum_clusters_validator",
                "typed_config": validator,
            }
        ]
    node: dict[str, Any] = {"id": node_id, "cluster": cluster}
    if metadata:
        node["metadata"] = dict(metadata)
    return {
        "node": node,
        "admin": {"address": _socket(admin_host, admin_port)},
        # The static tier is an internal listener; without this Envoy refuses it.
        "bootstrap_extensions": [
            {
                "name": "envoy.bootstrap.internal_listener",
                "typed_config": {"@type": _TYPE + _INTERNAL_LISTENER},
            }
        ],
        # Load per endpoint; it is asked for only as often as the control plane can take.
        "cluster_manager": {
            "load_stats_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": CONTROL_PLANE}}],
            }
        },
        "dynamic_resources": {"ads_config": stream, "cds_config": ads, "lds_config": ads},
        "static_resources": {"clusters": [_control_plane(xds_host, xds_port, tls)]},
    }


def _control_plane(host: str, port: int, tls: ClientTls | None) -> dict[str, Any]:
    keepalive = {"interval": "10s", "timeout": "5s"}
    options = {
        "@type": _TYPE + _HTTP_OPTIONS,
        "explicit_http_config": {"http2_protocol_options": {"connection_keepalive": keepalive}},
    }
    endpoint = {"endpoint": {"address": _socket(host, port)}}
    secured = {} if tls is None else {"transport_socket": _transport_socket(host, tls)}
    return {
        **secured,
        "name": CONTROL_PLANE,
        "type": "STATIC" if _is_ip(host) else "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {_HTTP_OPTIONS: options},
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 30}},
        "load_assignment": {
            "cluster_name": CONTROL_PLANE,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }


def _transport_socket(host: str, tls: ClientTls) -> dict[str, Any]:
    name = tls.server_name or host
    kind = "IP_ADDRESS" if _is_ip(name) else "DNS"
    context: dict[str, Any] = {
        "validation_context": {
            "trusted_ca": {"filename": tls.ca},
            # Else any certificate of that authority would do.
            "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": name}}],
        },
        "alpn_protocols": ["h2"],
    }
    if tls.cert is not None:
        context["tls_certificates"] = [
            {"certificate_chain": {"filename": tls.cert}, "private_key": {"filename": tls.key}}
        ]
    wanted: dict[str, Any] = {"@type": _TYPE + _UPSTREAM_TLS, "common_tls_context": context}
    if not _is_ip(name):
        wanted["sni"] = name
    return {"name": "envoy.transport_sockets.tls", "typed_config": wanted}


def _socket(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}s"
