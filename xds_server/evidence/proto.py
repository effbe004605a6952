"""The only module of this package that knows Envoy's messages: bytes to values and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.load_stats.v3 import lrs_pb2
from google.protobuf.message import DecodeError

from xds_server.evidence.entry import (
    NO_FLAGS,
    Address,
    EndpointLoad,
    Entry,
    LoadReport,
    LogMessage,
)
from xds_server.resources.bodies.token_cost import TOKENS
from xds_server.resources.headers import DEGRADE_REASON, DOWNGRADED, SERVED_MODEL, STATIC_TEMPLATE
from xds_server.resources.names import METADATA
from xds_server.resources.routing.request_classes import CLASS_HEADER
from xds_server.resources.stream_errors import STREAM_ERROR

SERVICE_FILES = (als_pb2, lrs_pb2)
"""Loaded so that server reflection can describe the services, which are handlers of bytes."""

_REQUEST = accesslog_pb2.AccessLogType.Value("DownstreamEnd")
_ATTEMPT = accesslog_pb2.AccessLogType.Value("UpstreamEnd")


MAX_DIGITS = 12
"""A longer number of tokens is nobody's request."""


class BadMessageError(ValueError):
    """Bytes that are not the message that was expected."""


def parse_logs(raw: bytes) -> LogMessage:
    """Parse a StreamAccessLogsMessage.

    Raises:
        BadMessageError: Not such a message.
    """
    message = _decode(als_pb2.StreamAccessLogsMessage, raw)
    node_id = log_name = None
    if message.HasField("identifier"):
        node_id, log_name = message.identifier.node.id, message.identifier.log_name
    entries = []
    skipped = 0
    for each in message.http_logs.log_entry:
        kind = each.common_properties.access_log_type
        if kind in (_REQUEST, _ATTEMPT):
            entries.append(_entry(each, is_request=kind == _REQUEST))
        else:
            skipped += 1
    skipped += len(message.tcp_logs.log_entry)
    return LogMessage(node_id, log_name, entries, skipped, _ended(message.http_logs.log_entry))


def parse_load(raw: bytes) -> LoadReport:
    """Parse a LoadStatsRequest.

    Raises:
        BadMessageError: Not such a message.
    """
    message = _decode(lrs_pb2.LoadStatsRequest, raw)
    node_id = message.node.id if message.HasField("node") else None
    endpoints = [
        EndpointLoad(
            cluster=cluster.cluster_name,
            address=address,
            issued=each.total_issued_requests,
            succeeded=each.total_successful_requests,
            failed=each.total_error_requests,
            in_progress=each.total_requests_in_progress,
            metrics={
                one.metric_name: (one.total_metric_value, one.num_requests_finished_with_metric)
                for one in each.load_metric_stats
            },
        )
        for cluster in message.cluster_stats
        for locality in cluster.upstream_locality_stats
        for each in locality.upstream_endpoint_stats
        if (address := _address(each.address)) is not None
    ]
    return LoadReport(node_id, endpoints, [each.cluster_name for each in message.cluster_stats])


def load_response(clusters: Iterable[str], *, interval_s: float) -> bytes:
    """Serialize a LoadStatsResponse: what a proxy shall report, and how often."""
    message = lrs_pb2.LoadStatsResponse(clusters=sorted(clusters), report_endpoint_granularity=True)
    message.load_reporting_interval.FromNanoseconds(round(interval_s * 1e9))
    return bytes(message.SerializeToString())


def logs_response() -> bytes:
    """Serialize the empty StreamAccessLogsResponse that ends a stream."""
    return bytes(als_pb2.StreamAccessLogsResponse().SerializeToString())


def _decode(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise BadMessageError(f"not a {kind.DESCRIPTOR.full_name}: {error}") from None


def _entry(message: Any, *, is_request: bool) -> Entry:
    common = message.common_properties
    response = message.response
    headers = response.response_headers
    started = _seconds(common, "time_to_first_upstream_tx_byte")
    first = _seconds(common, "time_to_first_upstream_rx_byte")
    last = _seconds(common, "time_to_last_upstream_rx_byte")
    tokens, errored = _facts(common.metadata) if is_request else (0.0, False)
    return Entry(
        is_request,
        common.route_name,
        common.upstream_cluster,
        _address(common.upstream_remote_address),
        response.response_code.value,
        _flags(common.response_flags) if common.HasField("response_flags") else NO_FLAGS,
        response.response_code_details == "via_upstream",
        common.upstream_request_attempt_count,
        _since(started, first),
        _since(started, last),
        _seconds(common, "duration") or 0.0,
        headers.get(SERVED_MODEL, ""),
        DOWNGRADED in headers,
        headers.get(DEGRADE_REASON, ""),
        headers.get(STATIC_TEMPLATE, ""),
        tokens,
        message.request.request_headers.get(CLASS_HEADER, ""),
        errored,
    )


def _facts(metadata: Any) -> tuple[float, bool]:
    """Return what a request was counted as, and whether its stream had an error event.

    The proxy sends its metadata along.
    """
    if METADATA not in metadata.filter_metadata:
        return 0.0, False
    fields = metadata.filter_metadata[METADATA].fields
    text: str = fields[TOKENS].string_value if TOKENS in fields else ""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    return (
        float(text) if is_number else 0.0,
        STREAM_ERROR in fields and fields[STREAM_ERROR].bool_value,
    )


def _ended(entries: Any) -> float | None:
    if not entries:
        return None
    common = entries[-1].common_properties
    started = _seconds(common, "start_time")
    return None if started is None else started + (_seconds(common, "duration") or 0.0)


def _flags(message: Any) -> frozenset[str]:
    return frozenset([field.name for field, _ in message.ListFields()])


def _address(message: Any) -> Address | None:
    socket = message.socket_address
    return (socket.address, socket.port_value) if socket.port_value else None


def _seconds(common: Any, name: str) -> float | None:
    if not common.HasField(name):
        return None
    value = getattr(common, name)
    seconds: float = value.seconds + value.nanos * 1e-9
    return seconds


def _since(started: float | None, ended: float | None) -> float | None:
    if started is None or ended is None or ended < started:
        return None
    return ended - started
