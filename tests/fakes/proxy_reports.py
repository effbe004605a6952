"""Messages as proxies send them to the log and load services."""

from __future__ import annotations

from collections.abc import Iterable

from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest

REQUEST, ATTEMPT = AccessLogType.DownstreamEnd, AccessLogType.UpstreamEnd


def an_entry(
    port: int | None = 8001,
    *,
    kind: int = REQUEST,
    host: str = "127.0.0.1",
    route: str = "chat",
    cluster: str = "chat/primary",
    status: int = 200,
    flags: Iterable[str] = (),
    attempts: int = 1,
    latency_s: float = 0.5,
    details: str = "via_upstream",
    served: str = "big",
    tokens: str = "",
    errored: bool = False,
    request_class: str = "",
    **headers: str,
) -> HTTPAccessLogEntry:
    """Return an entry with what a real one has besides; underscores in header names become dashes."""
    entry = HTTPAccessLogEntry(protocol_version=HTTPAccessLogEntry.HTTP11)
    common = entry.common_properties
    common.access_log_type = kind
    common.downstream_remote_address.socket_address.address = "10.9.9.9"
    common.downstream_remote_address.socket_address.port_value = 40000
    common.start_time.FromSeconds(1_700_000_000)
    common.route_name = route
    common.upstream_cluster = cluster
    common.stream_id = "6cfb2bd3-34be-44b2-b9d0-5d2c1d3f8e0a"
    if port is not None:
        common.upstream_remote_address.socket_address.address = host
        common.upstream_remote_address.socket_address.port_value = port
    if status:
        entry.response.response_code.value = status
    for name in flags:
        setattr(common.response_flags, name, True)
    common.upstream_request_attempt_count = attempts
    common.time_to_first_upstream_tx_byte.FromMicroseconds(100)
    common.time_to_first_upstream_rx_byte.FromMicroseconds(100 + int(latency_s * 5e5))
    common.time_to_last_upstream_rx_byte.FromMicroseconds(100 + int(latency_s * 1e6))
    common.duration.FromMicroseconds(200 + int(latency_s * 1e6))
    entry.request.path = "/v1/chat/completions"
    entry.request.authority = "llm.example"
    entry.request.user_agent = "openai-python"
    entry.request.request_id = "6cfb2bd3-34be-44b2-b9d0-5d2c1d3f8e0a"
    entry.response.response_code_details = details
    if request_class:
        entry.request.request_headers["x-request-class"] = request_class
    if errored:
        common.metadata.filter_metadata["llm"].fields["stream_error"].bool_value = True
    if tokens:
        fields = common.metadata.filter_metadata["llm"].fields
        fields["tokens"].string_value = tokens
    if served:
        entry.response.response_headers["x-served-model"] = served
    for name, value in headers.items():
        entry.response.response_headers[name.replace("_", "-")] = value
    return entry


def a_log(*entries: HTTPAccessLogEntry, node: str = "", log_name: str = "evidence") -> bytes:
    """Return one message of a log stream; `node` for the first."""
    message = StreamAccessLogsMessage()
    if node:
        message.identifier.node.id = node
        message.identifier.log_name = log_name
    message.http_logs.log_entry.extend(entries)
    return message.SerializeToString()


def a_load(
    *endpoints: tuple[int, int, int, int, int],
    node: str = "",
    cluster: str = "chat/primary",
    host: str = "127.0.0.1",
    metric: tuple[str, float, int] | None = None,
) -> bytes:
    """Return one load report: endpoints as (port, issued, succeeded, failed, in progress)."""
    message = LoadStatsRequest()
    if node:
        message.node.id = node
    if endpoints:
        locality = message.cluster_stats.add(cluster_name=cluster).upstream_locality_stats.add()
        for port, issued, succeeded, failed, in_progress in endpoints:
            each = locality.upstream_endpoint_stats.add(
                total_issued_requests=issued,
                total_successful_requests=succeeded,
                total_error_requests=failed,
                total_requests_in_progress=in_progress,
            )
            each.address.socket_address.address = host
            each.address.socket_address.port_value = port
            if metric is not None:
                name, total, count = metric
                each.load_metric_stats.add(
                    metric_name=name,
                    total_metric_value=total,
                    num_requests_finished_with_metric=count,
                )
    return message.SerializeToString()
