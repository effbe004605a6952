"""Load reports (ORCA): the engine says its load in a response header, and the proxy passes it on by LRS.

Engines do so only where the request asks for it, in whole answers with status 200 only (vLLM, Triton).
"""

from __future__ import annotations

from typing import Any

from xds_server.core.model import Model, Telemetry
from xds_server.resources import headers
from xds_server.resources.proto import Cluster

ASK = "endpoint-load-metrics-format"
"""The request header that asks for a report."""
FORMAT = "TEXT"
"""vLLM knows TEXT and JSON; any other value gets no report."""
REPORT_HEADERS = (
    "endpoint-load-metrics",
    "endpoint-load-metrics-bin",
    "endpoint-load-metrics-json",
)
"""What an engine answers with; clients need not know how busy it is."""
METRICS = "named_metrics.*"
"""Where vLLM puts `kv_cache_usage_perc` and `num_requests_waiting`, Triton `kv_cache_utilization`."""


def collect(cluster: Cluster) -> None:
    """Let proxies pass on what the engines behind a chain or in a tier report.

    Envoy asks the cluster that the route names (seen on 1.40): the chain, or the tier's own in the route of a gate
    or of a request that forbids a fallback. A member of a chain is never asked. What is reported still says which
    member and endpoint it is of.
    """
    cluster.lrs_report_endpoint_metrics.append(METRICS)


def is_wanted(model: Model) -> bool:
    """Whether any tier of the model wants reports; a route asks for all of them."""
    return any(tier.telemetry is Telemetry.ORCA for tier in model.tiers)


def set_headers(route: Any) -> None:
    """Let an authored route ask for reports and hide them from clients."""
    route.request_headers_to_add.append(headers.add(ASK, FORMAT))
    route.response_headers_to_remove.extend(REPORT_HEADERS)
