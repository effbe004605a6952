"""Traces, for who asks for them: one per push, from what was heard to what each proxy accepted.

    evaluate and push            inputs, age of the oldest sample, what was decided
      evaluate
      publish
      accepted by a proxy        proxy, type, version; from sending to the ACK

Evaluations that publish nothing leave no trace. Spans are sent by a thread of their own as OTLP over
HTTP in JSON: the exporters that speak protobuf bring googleapis-common-protos, which owns files of
xds-protos. OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME are heeded as everywhere. A receiver that is away
costs the traces and nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from xds_server import __version__
from xds_server.clock import Clock
from xds_server.observability.step import Step
from xds_server.xds.node import Proxy

if TYPE_CHECKING:
    from opentelemetry.context import Context

MOST_EVENTS = 20
"""Names of decisions in one span."""
REMEMBERED = 64
"""Pushes whose acceptance may still come."""
SEND_EVERY_MS = 1000
RECEIVER_TIMEOUT_S = 2.0
CLOSE_S = 1.0
"""How long the end of the process may wait for a receiver."""


class TracingUnavailableError(Exception):
    """Traces are wanted, and the packages for them are not installed."""


class Tracing:
    """Makes spans of steps and acceptances."""

    def __init__(self, url: str, clock: Clock) -> None:
        """Send to `url`, the full address of an OTLP/HTTP receiver that takes JSON.

        Raises:
            TracingUnavailableError: The extra `otel` is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.json.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
            from opentelemetry.trace import set_span_in_context  # noqa: PLC0415
        except ImportError as error:
            raise TracingUnavailableError(
                "traces need packages that are not installed: pip install 'gpu-xds[otel]', "
                "or leave out --traces-url"
            ) from error
        # It logs every failed send with a traceback; the traces' absence says as much.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        # What is given here would win over the environment.
        name = os.environ.get("OTEL_SERVICE_NAME") or "gpu-xds"
        about = {"service.name": name, "service.version": __version__}
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=url, timeout=RECEIVER_TIMEOUT_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=SEND_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("xds_server", __version__)
        self._in_context = set_span_in_context
        self._clock = clock
        self._pushes: deque[tuple[float, Context]] = deque(maxlen=REMEMBERED)

    def step(self, step: Step) -> None:
        """Make the spans of a step that published something."""
        attributes: dict[str, str | int | float | bool | list[str]] = {
            "fleet.inputs": step.inputs,
            "fleet.may_wait": step.may_wait,
            "fleet.events": [
                " ".join(filter(None, (each.name, each.instance or f"{each.model}/{each.tier}")))
                for each in step.events[:MOST_EVENTS]
            ],
            "fleet.event_count": len(step.events),
        }
        if step.oldest_s is not None:
            attributes["fleet.oldest_sample_s"] = step.oldest_s
        whole = self._tracer.start_span(
            "evaluate and push", start_time=self._unix_ns(step.started), attributes=attributes
        )
        context = self._in_context(whole)
        for name, began, ended in (
            ("evaluate", step.started, step.decided),
            ("publish", step.decided, step.published),
        ):
            part = self._tracer.start_span(name, context, start_time=self._unix_ns(began))
            part.end(self._unix_ns(ended))
        whole.end(self._unix_ns(step.published))
        self._pushes.append((step.started, context))

    def accepted(self, proxy: Proxy, type_url: str, version: str, lag_s: float) -> None:
        """Make the span of a response that a proxy accepted just now, `lag_s` after it was sent."""
        now = self._clock()
        sent = now - lag_s
        context = next((each for at, each in reversed(self._pushes) if at <= sent), None)
        span = self._tracer.start_span(
            "accepted by a proxy",
            context,
            start_time=self._unix_ns(sent),
            attributes={
                "fleet.proxy": proxy.id,
                "fleet.type": type_url.rpartition(".")[2],
                "fleet.version": version,
            },
        )
        span.end(self._unix_ns(now))

    def close(self) -> None:
        """Send what is left, in no more than `CLOSE_S`. Blocks."""
        # The library's own end waits for every retry: ten seconds where a receiver does not answer.
        last = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
        last.start()
        last.join(CLOSE_S)

    def _unix_ns(self, at: float) -> int:
        return time.time_ns() - int((self._clock() - at) * 1e9)
