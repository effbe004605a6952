"""Active health checks: what a proxy asks an engine by itself, where the policy wants it.

The check only ever *adds* a reason not to send: an endpoint takes requests when its check, its EDS health
and its outlier detection all allow it, so a check that passes overrides neither a drain nor a fault that the control
plane knows of, and the weight of a ramp stays the EDS weight. What each field is for was seen on Envoy 1.40.
"""

from __future__ import annotations

from typing import Any

from xds_server.core.policy import HealthPolicy
from xds_server.resources.proto import duration, typed

JITTER_PERCENT = 20
"""Proxies that started together do not go on asking together."""
RETURN_PERCENT = 10
"""Share of its weight with which an endpoint returns when only its check was failing."""
_HOST = "localhost"
"""Envoy would name the cluster, whose `/` is no host name."""


def set_checks(cluster: Any, health: HealthPolicy, path: str | None) -> None:
    """Add a tier's check to its authored cluster; nothing unless the policy asks for it.

    Args:
        cluster: typed, changed in place.
        health: the policy.
        path: this tier's own path; None = the policy's.
    """
    if not health.active:
        return
    core = typed.core
    interval = duration(health.interval_s)
    any_status = typed.type.Int64Range(start=100, end=600)
    check = core.HealthCheck(
        timeout=duration(health.timeout_s),
        interval=interval,
        interval_jitter_percent=JITTER_PERCENT,
        # By default a cluster without requests is checked once a minute, and the first check after
        # traffic began is as late: of an idle fallback tier one would know what was a minute ago.
        no_traffic_interval=interval,
        no_traffic_healthy_interval=interval,
        unhealthy_threshold=health.unhealthy,
        healthy_threshold=health.healthy,
        # A kept connection holds one of llama.cpp's few threads for as long as it is open.
        reuse_connection=False,
        http_health_check=core.HealthCheckHttpHealthCheck(
            host=_HOST,
            path=path or health.path,
            # Without, any other status than 200 takes the endpoint out at once: one hiccup is enough.
            retriable_statuses=[any_status],
        ),
    )
    cluster.health_checks = [check]
    # Without, an instance that EDS no longer lists goes on getting requests until its check fails.
    cluster.ignore_health_on_host_removal = True
    if health.return_s and cluster.lb_policy is typed.cluster.ClusterLbPolicy.ROUND_ROBIN:
        cluster.round_robin_lb_config = typed.cluster.ClusterRoundRobinLbConfig(
            slow_start_config=typed.cluster.ClusterSlowStartConfig(
                slow_start_window=duration(health.return_s),
                min_weight_percent=typed.type.Percent(value=RETURN_PERCENT),
            )
        )
