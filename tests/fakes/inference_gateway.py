"""A real Envoy with the filters that Istio gives a gateway for an InferencePool, in front of a picker.

ext_proc is off in the connection manager and on for the route; bodies are FULL_DUPLEX_STREAMED; the endpoint comes
as metadata, for the override_host policy of the pool's cluster, which else walks round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.envoy import LOOPBACK, RealEnvoy, running_envoy

TYPES = "type.googleapis.com/envoy.extensions"
LISTENER = "gateway"
EXT_PROC = "envoy.filters.http.ext_proc"
OFF = {
    "request_header_mode": "SKIP",
    "response_header_mode": "SKIP",
    "request_trailer_mode": "SKIP",
    "response_trailer_mode": "SKIP",
}
ON = {
    "request_header_mode": "SEND",
    "response_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_trailer_mode": "SEND",
}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": LOOPBACK, "port_value": port}}


def _cluster(name: str, ports: Sequence[int], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": _address(port)}} for port in ports]}
            ],
        },
        **more,
    }


def pool_cluster(ports: Sequence[int]) -> dict[str, Any]:
    """Return the cluster of an InferencePool's pods."""
    round_robin = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {"@type": f"{TYPES}.load_balancing_policies.round_robin.v3.RoundRobin"},
    }
    override = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": f"{TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [
                {
                    "metadata": {
                        "key": "envoy.lb",
                        "path": [{"key": "x-gateway-destination-endpoint"}],
                    }
                }
            ],
            "selected_host_key": {
                "key": "envoy.lb",
                "path": [{"key": "x-gateway-destination-endpoint-served"}],
            },
            "fallback_policy": {"policies": [{"typed_extension_config": round_robin}]},
        },
    }
    return _cluster(
        "pool", ports, load_balancing_policy={"policies": [{"typed_extension_config": override}]}
    )


def bootstrap(
    *,
    picker: Sequence[int],
    ports: Sequence[int],
    fails_open: bool = False,
    is_bare: bool = False,
    subset: Sequence[str] | None = None,
    modes: dict[str, str] | None = None,
    retries: int = 2,
    http2: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a gateway's configuration.

    Args:
        picker: ports of the picker's replicas; none = its service has no endpoint.
        ports: of the pods.
        fails_open: `failureMode: FailOpen`.
        is_bare: without the picker, for comparison.
        subset: endpoints of the subset hint.
        modes: what differs in the processing mode.
        retries: attempts besides the first; 0 = no retry policy.
        http2: options of the connection to the picker.
    """
    service = {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"}
    off = {
        "name": EXT_PROC,
        "typed_config": {
            "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": service,
            "processing_mode": OFF,
            "failure_mode_allow": True,
            "message_timeout": "1000s",
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }
    on = {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {
            "processing_mode": {**ON, **(modes or {})},
            "grpc_service": service,
            "failure_mode_allow": fails_open,
        },
    }
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
    }
    hint = {
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": f"{TYPES}.filters.http.set_metadata.v3.Config",
            "metadata": [
                {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "value": {"x-gateway-destination-endpoint-subset": list(subset or [])},
                }
            ],
        },
    }
    route: dict[str, Any] = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "pool",
            "timeout": "0s",
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
                "num_retries": retries,
                "retriable_status_codes": [503],
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {
                            "@type": f"{TYPES}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                        },
                    }
                ],
                "host_selection_retry_max_attempts": 5,
            },
        },
    }
    if not retries:
        del route["route"]["retry_policy"]
    filters = [router]
    if not is_bare:
        route["typed_per_filter_config"] = {EXT_PROC: on}
        filters = [*([] if subset is None else [hint]), off, router]
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": True},
        "http_filters": filters,
        "route_config": {
            "virtual_hosts": [{"name": "gateway", "domains": ["*"], "routes": [route]}]
        },
    }
    http = "envoy.filters.network.http_connection_manager"
    clusters = [pool_cluster(ports)]
    if not is_bare:
        h2 = {
            f"{TYPES[20:]}.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": http2 or {}},
            }
        }
        clusters.append(_cluster("picker", picker, typed_extension_protocol_options=h2))
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": LISTENER,
                    "address": _address(0),
                    "filter_chains": [{"filters": [{"name": http, "typed_config": manager}]}],
                }
            ],
            "clusters": clusters,
        }
    }


@asynccontextmanager
async def inference_gateway(directory: Path, **about: Any) -> AsyncIterator[tuple[RealEnvoy, str]]:
    """Run a gateway; yield it and its URL. See `bootstrap`."""
    async with running_envoy(bootstrap(**about), directory) as envoy:
        yield envoy, f"http://{LOOPBACK}:{await envoy.listener_port(LISTENER)}"
