"""Affinity inside a tier: the same session goes to the same endpoint, where its prefix is cached.

Which *tier* answers is still decided by weight, per request: a session keeps its endpoint in every tier it meets.
Endpoint weights hold on average over many sessions, and a change of one moves about as many sessions as it has to.
"""

from __future__ import annotations

from typing import Any

from xds_server.core.model import Affinity, AffinityPolicy, InstanceId, Model
from xds_server.resources.proto import LbEndpoint, duration, typed

RING_SIZE_MIN = 4096
"""Points on the ring; more than Envoy's 1024, so that shares come nearer to the weights."""


def set_policy(cluster: Any, affinity: Affinity | None) -> None:
    """Set the load balancing of a tier's authored cluster; without affinity it is left alone."""
    if affinity is None:
        return
    c = typed.cluster
    policies = c.ClusterLbPolicy
    if affinity.policy is AffinityPolicy.MAGLEV:
        cluster.lb_policy = policies.MAGLEV
    else:
        cluster.lb_policy = policies.RING_HASH
        cluster.ring_hash_lb_config = c.ClusterRingHashLbConfig(minimum_ring_size=RING_SIZE_MIN)
    if affinity.overflow_ratio is not None:
        # Percent, and at least 100; Envoy counts running requests per proxy, against the weights.
        factor = max(100, round(affinity.overflow_ratio * 100))
        cluster.common_lb_config.consistent_hashing_lb_config = (
            c.ClusterCommonLbConfigConsistentHashingLbConfig(hash_balance_factor=factor)
        )


def set_key(endpoint: LbEndpoint, instance: InstanceId) -> None:
    """Let an endpoint be found by its name, so that its sessions follow it to another address."""
    endpoint.metadata.filter_metadata["envoy.lb"].fields["hash_key"].string_value = instance


def of(model: Model) -> Affinity | None:
    """Return what names a session of a model; its tiers agree on it, because a route has one key."""
    return next((tier.affinity for tier in model.tiers if tier.affinity), None)


def set_hash_policy(action: Any, affinity: Affinity | None) -> None:
    """Let an authored route action take the session from its header or cookie."""
    if affinity is None:
        return
    r = typed.route
    if affinity.header is not None:
        header = r.RouteActionHashPolicyHeader(header_name=affinity.header)
        action.hash_policy = [r.RouteActionHashPolicy(header=header)]
        return
    cookie = r.RouteActionHashPolicyCookie(name=affinity.cookie or "", path="/")
    if affinity.cookie_ttl_s is not None:
        cookie.ttl = duration(affinity.cookie_ttl_s)
    action.hash_policy = [r.RouteActionHashPolicy(cookie=cookie)]
