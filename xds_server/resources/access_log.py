"""What proxies tell the control plane about requests: one log entry per request, one per failed attempt.

Both go over one gRPC stream per worker, because their common configuration is equal. A request's entry
says how it ended, and so speaks for its last attempt; attempts that failed before are told by the
router, which logs nothing else: a healthy fleet pays for one entry per request.

The entries travel on connections of the workers, never on the one that carries configuration, and a
proxy whose entries are not taken drops them and counts that: requests never wait for a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xds_server.core.policy import EvidencePolicy
from xds_server.resources import headers
from xds_server.resources.names import CONTROL_PLANE
from xds_server.resources.proto import duration, pack, typed
from xds_server.resources.routing.request_classes import CLASS_HEADER

LOG_NAME = "evidence"
BUFFER_BYTES = 16_384
"""What a worker collects before it sends early; Envoy's default."""

RESPONSE_HEADERS = (
    headers.SERVED_MODEL,
    headers.DOWNGRADED,
    headers.DEGRADE_REASON,
    headers.STATIC_TEMPLATE,
)

FLAGS = ("UF", "UC", "UR", "UT", "LR", "UPE", "SI", "UMSDR", "DPE")
"""Attempts with one of these are logged whatever their status: many of them broke after a 200.
UF no connection, UC and UR cut, UT and SI timed out, LR reset here, UPE not HTTP."""
LOWEST_STATUS = 429


def request_log(policy: EvidencePolicy) -> list[Any]:
    """Return the access log of a listener, as a list of one or none."""
    return [_log(policy)] if policy.access_log else []


def attempt_log(policy: EvidencePolicy) -> list[Any]:
    """Return the router's log of attempts that failed, as a list of one or none."""
    if not policy.access_log:
        return []
    a = typed.accesslog
    status = a.StatusCodeFilter(
        comparison=a.ComparisonFilter(
            op=a.ComparisonFilterOp.GE,
            value=typed.core.RuntimeUInt32(
                default_value=LOWEST_STATUS, runtime_key="fleet.evidence.lowest_status"
            ),
        )
    )
    failed = a.OrFilter(
        filters=[
            a.AccessLogFilter(status_code_filter=status),
            a.AccessLogFilter(response_flag_filter=a.ResponseFlagFilter(flags=list(FLAGS))),
        ]
    )
    return [_log(policy, a.AccessLogFilter(or_filter=failed))]


def every_attempt_log(policy: EvidencePolicy) -> list[Any]:
    """Return the log of all attempts, for the router of a gate.

    The request's own entry cannot say which endpoint its last attempt reached there, and the gate's route cannot
    say which class the request is of.
    """
    return [_log(policy, tells=[CLASS_HEADER])] if policy.access_log else []


def _log(policy: EvidencePolicy, only: Any = None, *, tells: Sequence[str] = ()) -> Any:
    service = typed.core.GrpcService(
        envoy_grpc=typed.core.GrpcServiceEnvoyGrpc(cluster_name=CONTROL_PLANE)
    )
    g = typed.grpc_access_log
    config = g.HttpGrpcAccessLogConfig(
        common_config=g.CommonGrpcAccessLogConfig(
            log_name=LOG_NAME,
            grpc_service=service,
            transport_api_version=typed.core.ApiVersion.V3,
            buffer_flush_interval=duration(policy.flush_s),
            buffer_size_bytes=BUFFER_BYTES,
        ),
        additional_request_headers_to_log=list(tells),
        additional_response_headers_to_log=list(RESPONSE_HEADERS),
    )
    return typed.accesslog.AccessLog(
        name="envoy.access_loggers.http_grpc", filter=only, typed_config=pack(config)
    )
