"""The services that proxies report to: access logs (ALS) and load (LRS), as handlers of bytes.

A stream that is slow, broken or lying costs itself and nobody else: nothing is queued here, a message is
read when the one before it was dealt with, and what is not read stays with the proxy, which drops its
oldest entries and goes on serving. Logs come on connections of the proxies' workers; load reports share
the connection of the configuration, so they are read at once and asked for rarely.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from xds_server import logs
from xds_server.clock import Clock
from xds_server.core.policy import EvidencePolicy
from xds_server.evidence.budget import Budget, Lag
from xds_server.evidence.demand import Demand
from xds_server.evidence.entry import LoadReport, LogMessage
from xds_server.evidence.intake import Intake
from xds_server.evidence.proto import (
    BadMessageError,
    load_response,
    logs_response,
    parse_load,
    parse_logs,
)
from xds_server.observability.metrics import Tally
from xds_server.resources.access_log import LOG_NAME

ALS_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
LRS_SERVICE = "envoy.service.load_stats.v3.LoadReportingService"
EVIDENCE_SERVICES = (ALS_SERVICE, LRS_SERVICE)
"""Full names, for health and reflection."""

MAX_MESSAGE_BYTES = 256 * 1024
"""Proxies send when they have 16 KiB, and their node of 60 KiB once; more would hold up everything else."""
KNOWN_WITHIN_S = 10.0
"""How long a proxy may take to be known by its xDS stream. After a restart of this server its logs may be
first; and who is refused at once comes back at once."""
KNOWN_STEP_S = 0.25
MAX_STREAMS = 50_000
"""Of both kinds; more are refused with RESOURCE_EXHAUSTED."""
SAY_EVERY_S = 1.0
"""Refusals are counted each, but logged at most this often."""
REPORT_COST = 10.0
"""What a load report costs, in endpoints; one costs 27 us."""
LOADS_PER_S = 5000.0
"""Endpoints in the load reports of all proxies together; with more each proxy reports less often."""
FORGETS = 0.02
"""Weight of a report in the mean number of endpoints."""


class EvidenceServer:
    """Serves both services on whatever gRPC server it is added to."""

    def __init__(
        self,
        *,
        intake: Intake,
        policy: Callable[[], EvidencePolicy],
        clusters: Callable[[], frozenset[str]],
        is_known: Callable[[str], bool],
        clock: Clock,
        tally: Tally,
    ) -> None:
        """Serve into `intake`.

        Args:
            intake: Takes what is said.
            policy: The policy as it is now.
            clusters: Names of the clusters whose load is wanted, as they are now.
            is_known: Whether a node has an xDS stream here.
            clock: Monotonic seconds.
            tally: Counts.
        """
        self._intake = intake
        self._policy = policy
        self._clusters = clusters
        self._is_known = is_known
        self._clock = clock
        self._tally = tally
        self.demand = Demand()
        """What each proxy is asked for."""
        self._budget = Budget(clock)
        self._log_streams = 0
        self._load_streams = 0
        self._endpoints = 0.0
        """Mean number of endpoints in a load report."""
        self._say_at = float("-inf")
        self._log = logs.get("evidence")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return what `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        access_logs = grpc.stream_unary_rpc_method_handler(self._access_logs)
        load = grpc.stream_stream_rpc_method_handler(self._load_stats)
        return [
            grpc.method_handlers_generic_handler(ALS_SERVICE, {"StreamAccessLogs": access_logs}),
            grpc.method_handlers_generic_handler(LRS_SERVICE, {"StreamLoadStats": load}),
        ]

    @property
    def streams(self) -> int:
        """How many streams of both kinds are open."""
        return self._log_streams + self._load_streams

    async def _access_logs(self, _: Any, context: Any) -> bytes:
        await self._room(context)
        self._log_streams += 1
        try:
            is_first = True
            node_id = ""
            lag = Lag()
            while (raw := await context.read()) is not grpc.aio.EOF:
                message = await self._parsed_logs(context, raw)
                if is_first:
                    await self._admit(context, message.node_id)
                    if message.log_name != LOG_NAME:
                        await self._refuse(context, "log_name", f"log {message.log_name!a}")
                    is_first, node_id = False, message.node_id or ""
                if message.skipped:
                    self._tally.add("fleet_evidence_refused_total", "kind", by=message.skipped)
                self._tally.add("fleet_evidence_entries_total", by=len(message.entries))
                is_stale = lag.is_stale(message.ended_unix_s, now_unix_s=time.time())
                if is_stale:
                    self._tally.add("fleet_evidence_stale_total", by=len(message.entries))
                self._intake.take_logs(message.entries, is_stale=is_stale)
                requests = sum(entry.is_request for entry in message.entries)
                self.demand.add(node_id, requests, self._clock())
                wait_s = self._budget.spend(
                    len(message.entries), per_s=self._policy().entries_per_second
                )
                if wait_s > 0.0:
                    self._tally.add("fleet_evidence_waits_total")
                    await asyncio.sleep(wait_s)
            return logs_response()
        finally:
            self._log_streams -= 1

    async def _parsed_logs(self, context: Any, raw: bytes) -> LogMessage:
        if len(raw) > MAX_MESSAGE_BYTES:
            await self._refuse(context, "oversize", f"a message of {len(raw)} bytes")
        try:
            return parse_logs(raw)
        except BadMessageError as error:
            await self._refuse(context, "bad_message", str(error))

    async def _load_stats(self, _: Any, context: Any) -> None:
        await self._room(context)
        self._load_streams += 1
        source = object()
        asked: tuple[frozenset[str], float] | None = None
        try:
            while (raw := await context.read()) is not grpc.aio.EOF:
                report = await self._parsed_load(context, raw)
                if asked is None:
                    await self._admit(context, report.node_id)
                else:
                    self._tally.add("fleet_load_reports_total")
                    self._endpoints += FORGETS * (len(report.endpoints) - self._endpoints)
                    self._intake.take_load(source, report)
                wanted = (self._clusters(), self._interval_s())
                if wanted != asked:
                    asked = wanted
                    await context.write(load_response(wanted[0], interval_s=wanted[1]))
        finally:
            self._load_streams -= 1
            self._intake.forget(source)

    async def _parsed_load(self, context: Any, raw: bytes) -> LoadReport:
        try:
            return parse_load(raw)
        except BadMessageError as error:
            await self._refuse(context, "bad_message", str(error))

    def _interval_s(self) -> float:
        """Return how often proxies shall report; doubled as often as needed, so it changes rarely."""
        interval_s = self._policy().load_report_s
        cost = self._load_streams * (REPORT_COST + self._endpoints)
        while cost > LOADS_PER_S * interval_s:
            interval_s *= 2.0
        return interval_s

    async def _admit(self, context: Any, node_id: str | None) -> None:
        """Let a proxy in that has an xDS stream here, or comes to have one soon."""
        if not node_id:
            await self._refuse(context, "no_node", "no node.id in the first message")
        end = self._clock() + KNOWN_WITHIN_S
        while not self._is_known(node_id):
            if self._clock() >= end:
                await self._refuse(context, "unknown_node", f"node {node_id!a} without xDS stream")
            await asyncio.sleep(KNOWN_STEP_S)

    async def _room(self, context: Any) -> None:
        if self.streams >= MAX_STREAMS:
            text = f"too many streams: this server reads {MAX_STREAMS}"
            await self._refuse(context, "streams", text, grpc.StatusCode.RESOURCE_EXHAUSTED)

    async def _refuse(
        self,
        context: Any,
        reason: str,
        text: str,
        status: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    ) -> NoReturn:
        self._tally.add("fleet_evidence_refused_total", reason)
        now = self._clock()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            self._log.warning(logs.EVIDENCE_REFUSED, peer=context.peer(), reason=text[:200])
        await context.abort(status, text[:200])
        raise AssertionError
