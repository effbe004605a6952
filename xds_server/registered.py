"""Instances that agents registered, and the topology that includes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from xds_server.core.model import Instance, Model, ModelName, Tier, TierName, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An instance that an agent registered, and the tier that it belongs to."""

    model: ModelName
    tier: TierName
    instance: Instance


def with_registered(topology: Topology, registered: Iterable[Registered]) -> Topology:
    """Add registered instances to the tiers that discover, in order of their names.

    What does not fit any more (the tier is gone, or lists its instances now) is left out.
    """
    by_tier: dict[tuple[ModelName, TierName], list[Instance]] = {}
    for each in registered:
        by_tier.setdefault((each.model, each.tier), []).append(each.instance)

    def tier_of(model: Model, tier: Tier) -> Tier:
        found = by_tier.get((model.name, tier.name))
        if not tier.discovers or not found:
            return tier
        return replace(tier, instances=tuple(sorted(found, key=lambda one: one.id)))

    models = tuple(
        replace(model, tiers=tuple(tier_of(model, tier) for tier in model.tiers))
        for model in topology.models
    )
    return replace(topology, models=models)
