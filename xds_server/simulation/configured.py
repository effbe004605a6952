"""The simulated fleet that a configuration describes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xds_server.core.model import Model, Tier, Topology
from xds_server.core.policy import Policy
from xds_server.simulation.engine import EngineSpec
from xds_server.simulation.fleet import FleetSpec
from xds_server.simulation.workload import Profile


class NotSimulatedError(ValueError):
    """The model cannot be simulated; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredFleet(FleetSpec):
    """A model with its own names, limits and capacities instead of numbered ones."""

    model: Model

    def names(self) -> tuple[tuple[str, ...], ...]:
        """Return the instance names as they are configured."""
        return tuple(
            tuple(str(each.id) for each in tier.instances) for tier in self.model.tiers[:-1]
        )

    def topology(self) -> Topology:
        """Return the model with the capacities that are simulated."""
        return Topology(models=(self.model,))


def configured(
    model: Model,
    policy: Policy,
    *,
    load: float,
    duration_s: float,
    lag_s: float,
    engine: EngineSpec,
) -> ConfiguredFleet:
    """Return the fleet of one model.

    Args:
        model: The last of its tiers answers by itself.
        policy: Says how often agents send.
        load: Requests offered, in multiples of what the first tier can complete.
        duration_s: How long it runs.
        lag_s: Age of telemetry when it reaches the control plane.
        engine: How fast every engine is; its slots are those of instances without a capacity.

    Raises:
        NotSimulatedError: The first tier has no instances, or another tier answers by itself.
    """
    *tiers, last = model.tiers
    if not tiers or not tiers[0].instances:
        raise NotSimulatedError(
            f"model {model.name}: its first tier has no instances in the file: nothing to simulate"
        )
    if any(tier.is_static for tier in tiers):
        raise NotSimulatedError(f"model {model.name}: only its last tier may have an answer")
    sized = tuple(_sized(tier, engine.slots) for tier in tiers)
    return ConfiguredFleet(
        model=replace(model, tiers=(*sized, last)),
        tiers=tuple(
            tuple(
                replace(engine, slots=max(1, round(each.capacity or engine.slots)))
                for each in tier.instances
            )
            for tier in sized
        ),
        load=Profile.steps((0.0, load)),
        duration_s=duration_s,
        lag_s=lag_s,
        interval_s=policy.telemetry.interval_s,
    )


def _sized(tier: Tier, slots: int) -> Tier:
    return replace(
        tier,
        instances=tuple(
            replace(each, capacity=each.capacity or float(slots)) for each in tier.instances
        ),
    )
