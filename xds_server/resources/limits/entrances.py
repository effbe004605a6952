"""Which cluster leads to a tier: its own, or the gate in front of it where the tier has a limit."""

from __future__ import annotations

from xds_server.core.model import Model, Tier
from xds_server.resources.names import cluster_name


def is_gated(tier: Tier) -> bool:
    """Whether a tier's limit is kept by a gate."""
    return tier.limit.is_set and not tier.is_static


def gate_name(model: Model, tier: Tier) -> str:
    """Name the cluster that leads to a tier's gate, and the gate's internal listener."""
    return f"{cluster_name(model.name, tier.name)}/gate"


def entrance(model: Model, tier: Tier) -> str:
    """Name the cluster that chains and routes of a proxy name for a tier."""
    return gate_name(model, tier) if is_gated(tier) else cluster_name(model.name, tier.name)
