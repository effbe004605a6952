"""The EnvoyFilter with which sidecars of a mesh take the endpoints of our tiers from us (pure).

Of every cluster that istiod makes for a tier's host, three are made:

    outbound|8000||llm.ai.svc…   aggregate, under the name that all routes of the mesh use
      1. fleet|8000||llm.ai.svc…   EDS from here: our instances and weights
      2. mesh|8000||llm.ai.svc…    istiod's own cluster, renamed, with its TLS and its DestinationRule

Without us, or while we say nothing, the second one serves as if there were no filter. What is written here was
tried on a real istiod and a real Envoy; docs/istio/envoyfilter.md says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from xds_server.istio.cluster_names import MeshCluster
from xds_server.resources.clusters import (
    BUFFER_LIMIT_BYTES,
    CONNECT_TIMEOUT_S,
    EJECTION_INTERVAL_S,
    EJECTION_MAX_S,
    EJECTION_S,
    KEEP_ALIVE_S,
    UNBOUNDED,
)

FETCH_TIMEOUT_S = 3
"""How long a sidecar waits for our endpoints before it goes on with istiod's. istiod's own 0 would be for ever, and
would stay in force if it were not written (istiod merges)."""
AGAIN_MOST_S = 5
"""Longest pause before we are tried again; Envoy's own would be 30 s, gRPC's 2 minutes."""
STAT_PREFIX = "fleet_xds"
CHANNEL = {
    "grpc.initial_reconnect_backoff_ms": 250,
    "grpc.max_reconnect_backoff_ms": AGAIN_MOST_S * 1000,
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
}
"""Who vanished without a word is noticed within 40 s."""
_TYPE = "type.googleapis.com/"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_AGGREGATE = "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
_TLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_KUBERNETES_HOST = re.compile(r"^(?P<name>[^.*]+)\.(?P<namespace>[^.]+)\.svc\.")


def envoy_filter(
    clusters: Iterable[MeshCluster],
    *,
    name: str,
    namespace: str,
    target: str,
    labels: Mapping[str, str],
    failures: int,
    tls_ca_file: str | None = None,
    mesh_tls: bool = False,
) -> dict[str, Any]:
    """Return the EnvoyFilter as a Kubernetes object.

    Args:
        clusters: Clusters of istiod whose endpoints come from us; tiers of several models may share one.
        name: Name of the object.
        namespace: Where it applies; istiod's root namespace means everywhere.
        target: host:port of our xDS port as sidecars reach it.
        labels: Which workloads get it; none = all of the namespace.
        failures: Consecutive 5xx that eject an endpoint.
        tls_ca_file: Path inside of the sidecar to the CA of what speaks TLS in front of us; None = plaintext.
        mesh_tls: Speak the mesh's mutual TLS to our endpoints: they have sidecars themselves.
    """
    patches: list[dict[str, Any]] = []
    for each in sorted(set(clusters)):
        patches += [
            {
                "applyTo": "CLUSTER",
                "match": {"context": "SIDECAR_OUTBOUND", "cluster": {"name": each.name}},
                "patch": {"operation": "MERGE", "value": {"name": each.own}},
            },
            _add(
                fleet_cluster(
                    each,
                    target=target,
                    failures=failures,
                    tls_ca_file=tls_ca_file,
                    mesh_tls=mesh_tls,
                )
            ),
            _add(aggregate_cluster(each)),
        ]
    spec: dict[str, Any] = {"configPatches": patches}
    if labels:
        spec = {"workloadSelector": {"labels": dict(labels)}, **spec}
    return {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def fleet_cluster(
    cluster: MeshCluster,
    *,
    target: str,
    failures: int,
    tls_ca_file: str | None = None,
    mesh_tls: bool = False,
) -> dict[str, Any]:
    """Return the cluster whose endpoints we serve, as JSON."""
    google: dict[str, Any] = {
        "target_uri": target,
        "stat_prefix": STAT_PREFIX,
        "channel_args": {"args": {name: {"int_value": each} for name, each in CHANNEL.items()}},
    }
    if tls_ca_file is not None:
        root = {"root_certs": {"filename": tls_ca_file}}
        google["channel_credentials"] = {"ssl_credentials": root}
    breakers = {"max_connections": UNBOUNDED, "max_pending_requests": UNBOUNDED}
    made: dict[str, Any] = {
        "name": cluster.fleet,
        "type": "EDS",
        "eds_cluster_config": {
            "service_name": cluster.name,
            "eds_config": {
                "resource_api_version": "V3",
                "initial_fetch_timeout": f"{FETCH_TIMEOUT_S}s",
                "api_config_source": {
                    "api_type": "DELTA_GRPC",
                    "transport_api_version": "V3",
                    "set_node_on_first_message_only": True,
                    # The one kind of service that needs no cluster of the bootstrap.
                    "grpc_services": [
                        {
                            "google_grpc": google,
                            "retry_policy": {
                                "retry_back_off": {
                                    "base_interval": "0.25s",
                                    "max_interval": f"{AGAIN_MOST_S}s",
                                }
                            },
                        }
                    ],
                },
            },
        },
        "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s",
        "lb_policy": "ROUND_ROBIN",  # the only policy that keeps the weights' ratio
        "per_connection_buffer_limit_bytes": BUFFER_LIMIT_BYTES,
        "circuit_breakers": {"thresholds": [{**breakers, "max_requests": UNBOUNDED}]},
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "outlier_detection": {
            "consecutive_5xx": failures,
            "interval": f"{EJECTION_INTERVAL_S:g}s",
            "base_ejection_time": f"{EJECTION_S:g}s",
            "max_ejection_time": f"{EJECTION_MAX_S:g}s",
            "max_ejection_percent": 100,
            "enforcing_success_rate": 0,
        },
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {
                "@type": _TYPE + _HTTP_OPTIONS,
                "common_http_protocol_options": {"idle_timeout": f"{KEEP_ALIVE_S:g}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        **_telemetry(cluster),
    }
    if mesh_tls:
        made["transport_socket"] = _mesh_tls(cluster)
    return made


def aggregate_cluster(cluster: MeshCluster) -> dict[str, Any]:
    """Return the cluster that goes on with istiod's endpoints while ours can take nothing, as JSON."""
    config = {"@type": _TYPE + _AGGREGATE, "clusters": [cluster.fleet, cluster.own]}
    breakers = {"max_connections": UNBOUNDED, "max_pending_requests": UNBOUNDED}
    return {
        "name": cluster.name,
        "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": {"thresholds": [{**breakers, "max_requests": UNBOUNDED}]},
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": config},
        **_telemetry(cluster),
    }


def _add(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "applyTo": "CLUSTER",
        "match": {"context": "SIDECAR_OUTBOUND"},
        "patch": {"operation": "ADD", "value": dict(value)},
    }


def _telemetry(cluster: MeshCluster) -> dict[str, Any]:
    """Return the metadata from which the mesh's metrics know the service; istiod writes it on its clusters."""
    found = _KUBERNETES_HOST.match(cluster.host)
    if found is None:
        return {}
    service = {"host": cluster.host, "name": found["name"], "namespace": found["namespace"]}
    return {"metadata": {"filter_metadata": {"istio": {"services": [service]}}}}


def _mesh_tls(cluster: MeshCluster) -> dict[str, Any]:
    """Return the socket with the workload's own certificate, which the sidecar's agent hands out as `default`."""

    def secret(name: str) -> dict[str, Any]:
        source = {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "set_node_on_first_message_only": True,
            "grpc_services": [{"envoy_grpc": {"cluster_name": "sds-grpc"}}],
        }
        return {
            "name": name,
            "sds_config": {
                "resource_api_version": "V3",
                "initial_fetch_timeout": "0s",
                "api_config_source": source,
            },
        }

    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _TYPE + _TLS,
            "sni": cluster.sni,
            "common_tls_context": {
                "alpn_protocols": ["istio-peer-exchange", "istio", "http/1.1"],
                "tls_certificate_sds_secret_configs": [secret("default")],
                "combined_validation_context": {
                    "default_validation_context": {},
                    "validation_context_sds_secret_config": secret("ROOTCA"),
                },
            },
        },
    }
