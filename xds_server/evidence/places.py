"""Whose endpoint, cluster and route an entry speaks of: the topology, indexed by what proxies know."""

from __future__ import annotations

from typing import NamedTuple

from xds_server.core.model import InstanceId, ModelName, TierName, Topology
from xds_server.evidence.entry import Address, Entry
from xds_server.resources.limits.entrances import entrance
from xds_server.resources.names import GATE_ROUTE, cluster_name


class Place(NamedTuple):
    """One instance and where it belongs."""

    model: ModelName
    tier: TierName
    instance: InstanceId


class TierPlace(NamedTuple):
    """One tier."""

    model: ModelName
    tier: TierName
    position: int
    """0 for the first of its model's tiers."""
    is_static: bool


class Places:
    """Lookups of one topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.instances: dict[Address, Place] = {
            (each.host, each.port): Place(model.name, tier.name, each.id)
            for model, tier, each in topology.instances()
        }
        self.tiers: dict[str, TierPlace] = {}
        """By name of the cluster."""
        self.routes: dict[str, tuple[ModelName, str]] = {}
        """Model and class by name of the route; the class is empty where there are none."""
        self.token_limits: dict[ModelName, float] = {
            model.name: model.limit.tokens_per_second
            for model in topology.models
            if model.limit.tokens_per_second is not None
        }
        """Tokens/s by model, where there is such a limit."""
        self._static: dict[ModelName, tuple[str, TierPlace]] = {}
        for model in topology.models:
            self.routes[model.name] = (model.name, "")
            for each in topology.classes:
                self.routes[f"{model.name}/{each.name}"] = (model.name, each.name)
            for index, tier in enumerate(model.tiers):
                place = TierPlace(model.name, tier.name, index, tier.is_static)
                for name in (cluster_name(model.name, tier.name), entrance(model, tier)):
                    self.tiers[name] = place
                name = tier.serves or tier.name
                # An engine that is called the same would be taken for it.
                if tier.is_static and all(each.serves != name for each in model.tiers[:index]):
                    self._static[model.name] = (name, place)

    def asked_by(self, model: ModelName, entry: Entry) -> tuple[ModelName, str] | None:
        """Return the model and class of the request that an attempt at an engine of this model was made for.

        A gate has one route for all; there the attempt says which class it is of.
        """
        if entry.route != GATE_ROUTE:
            return self.routes.get(entry.route)
        named = self.routes.get(f"{model}/{entry.request_class}")
        return named or self.routes.get(str(model))

    def answered_by(self, model: ModelName, *, cluster: str, served: str) -> TierPlace | None:
        """Return the tier that answered.

        The last net answers statically after an engine's last failure: then the header tells, which it
        set, and not the cluster.
        """
        static = self._static.get(model)
        if static is not None and served == static[0]:
            return static[1]
        place = self.tiers.get(cluster)
        return place if place is not None and place.model == model else None
