"""Structured logs: one event per line, named in snake_case past tense.

Every event of the brain is one line under its own name (`instance_down`, `level_changed`, ...); what
the process itself does is named here.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from typing import Any, TextIO

import structlog

SERVER_STARTED = "server_started"
SERVER_WARM = "server_warm"
SERVER_STOPPING = "server_stopping"
PART_FAILED = "part_failed"
SERVER_STOPPED = "server_stopped"
CONFIG_RELOADED = "config_reloaded"
CONFIG_DOUBTED = "config_doubted"
CONFIG_REFUSED = "config_refused"
SNAPSHOT_PUBLISHED = "snapshot_published"
PUBLISH_FAILED = "publish_failed"
EVALUATION_FAILED = "evaluation_failed"
STATE_RESTORED = "state_restored"
STATE_UNUSABLE = "state_unusable"
STATE_WRITE_FAILED = "state_write_failed"
STATE_WRITE_RECOVERED = "state_write_recovered"
XDS_NACK_RECEIVED = "xds_nack_received"
XDS_STREAM_REFUSED = "xds_stream_refused"
PROXY_DISCONNECTED = "proxy_disconnected"
SERVER_SETTINGS_CHANGED = "server_settings_changed"
AGENT_CONNECTED = "agent_connected"
AGENT_DISCONNECTED = "agent_disconnected"
TELEMETRY_REFUSED = "telemetry_refused"
OWNERSHIP_CONFLICT_FOUND = "ownership_conflict_found"
EVIDENCE_REFUSED = "evidence_refused"
LIMITS_DIVIDED = "limits_divided"
PROXY_ID_SHARED = "proxy_id_shared"
INSTANCES_REGISTERED = "instances_registered"
STORE_WRITE_FAILED = "store_write_failed"
STORE_WRITE_RECOVERED = "store_write_recovered"
STORE_BEGUN_ANEW = "store_begun_anew"
STORE_ROW_REFUSED = "store_row_refused"
DRAIN_REQUESTED = "drain_requested"
FORCE_REQUESTED = "force_requested"
CONFIG_SOURCE_LISTENING = "config_source_listening"
ISTIOD_CONNECTED = "istiod_connected"
ISTIOD_DISCONNECTED = "istiod_disconnected"
ISTIOD_REFUSED = "istiod_refused"
ISTIOD_REFUSES = "istiod_refuses"
ISTIOD_ASKS_UNKNOWN = "istiod_asks_unknown"
MESH_OBJECT_PUBLISHED = "mesh_object_published"
MESH_OBJECT_REFUSED = "mesh_object_refused"
MESH_OBJECT_MENDED = "mesh_object_mended"
MESH_WATCHED = "mesh_watched"
MESH_UNWATCHED = "mesh_unwatched"
MESH_FOLLOWING = "mesh_following"
MESH_NOT_FOLLOWING = "mesh_not_following"
PICKER_FAILED = "picker_failed"
PICKER_LISTENING = "picker_listening"
PICKER_REFUSED = "picker_refused"
PLAN_LISTENER_FAILED = "plan_listener_failed"
ADMIN_ORDERS_OFF = "admin_orders_off"
ADMIN_UNGUARDED = "admin_unguarded"
ADMIN_REFUSED = "admin_refused"
ADMIN_TOKENS_REFUSED = "admin_tokens_refused"
ADMIN_TOKENS_RELOADED = "admin_tokens_reloaded"
ISTIO_LEADERSHIP_GAINED = "istio_leadership_gained"
ISTIO_LEADERSHIP_LOST = "istio_leadership_lost"
ISTIO_LEASE_FAILED = "istio_lease_failed"
ISTIO_OBJECT_WRITTEN = "istio_object_written"
ISTIO_OBJECT_REFUSED = "istio_object_refused"
ISTIO_OBJECT_FAILED = "istio_object_failed"
ISTIO_OBJECT_TAKEN_BACK = "istio_object_taken_back"
ISTIO_OBJECT_LEFT = "istio_object_left"
ISTIO_OBJECT_DOUBTED = "istio_object_doubted"
ISTIO_SERVER_UNUSABLE = "istio_server_unusable"


def set_up(*, style: str, level: str, stream: TextIO | None = None) -> None:
    """Configure logging for the process.

    Args:
        style: `json`, `console`, or `auto` (console on a terminal).
        level: The least level that is written.
        stream: Where lines go; standard error by default.
    """
    out = stream or sys.stderr
    as_console = style == "console" or (style == "auto" and out.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if as_console
        else structlog.processors.JSONRenderer()
    )
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not as_console:
        processors.append(structlog.processors.dict_tracebacks)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that names the part of the process it speaks for."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(part=name)
    return logger


MOST_LISTED = 10
"""Names in one log line."""


def listed(names: Collection[str]) -> list[str]:
    """Return the names for a person: of a large fleet the first ones, and how many more there are."""
    first = [str(name) for name in sorted(names)[:MOST_LISTED]]
    more = len(names) - len(first)
    return [*first, f"and {more} more"] if more else first
