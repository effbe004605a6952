"""What the brain remembers between two evaluations. Immutable: a step returns new objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from xds_server.core.flow import InstanceFlow
from xds_server.core.hysteresis import Latch
from xds_server.core.levels import LevelTrack
from xds_server.core.model import Instance, InstanceId, Model, Tier, TierName, Topology
from xds_server.core.plan import Event, Freshness, Level, ModelPlan
from xds_server.core.pressure import Held
from xds_server.core.record import record
from xds_server.core.sample import Sample
from xds_server.core.spill import SpillState, TierReading
from xds_server.core.track import Track
from xds_server.core.vram import VramWatch


@record
class InstanceState:
    """One instance: its last sample and what its history means."""

    instance: Instance
    sample: Sample | None
    held: Held | None
    """Completes a partial sample; None when the sample is complete."""
    flow: InstanceFlow | None
    track: Track
    vram: VramWatch
    throttle: Latch
    freshness: Freshness
    slots: float | None
    """Capacity: configured, else reported by the engine, else learned; None when unknown."""
    ceiling: float
    """Share of the capacity that faults, throttling and VRAM allow."""
    pressure: float | None
    lag_s: float
    """Age of the last sample when it was used; 0 before the first."""
    deadline: float
    """When this instance must be looked at though no sample came."""
    running: float | None = None
    """Of the last sample, as it is ..."""
    waiting: float | None = None
    """... so that adding up a tier touches no samples: of ten thousand, none is in a cache any more."""


@record
class TierState:
    """One tier: its instances and the corrections of their weights."""

    tier: Tier
    instances: tuple[InstanceState, ...]
    corrections: tuple[float, ...]
    """Factor on each instance's capacity weight, as it is now."""
    easing: frozenset[int]
    """Positions whose correction still moves slowly toward its target."""
    eased_at: float
    level: LevelTrack
    frozen_since: float | None
    """Since when more than `freeze_ratio` of the tier has been blind."""
    is_known: bool
    """Whether enough of it was ever heard: what was never known is not frozen and eases nowhere."""
    shaken_at: float
    """When telemetry of any of it was last lost or returned."""

    def holding(self, instances: tuple[InstanceState, ...]) -> TierState:
        """Return the same tier with other states of its instances."""
        return TierState(
            self.tier,
            instances,
            self.corrections,
            self.easing,
            self.eased_at,
            self.level,
            self.frozen_since,
            self.is_known,
            self.shaken_at,
        )


class TierStep(NamedTuple):
    """What the last step of a tier found. It holds until its deadline, or until `state` differs."""

    state: TierState
    """The tier as it was weighed."""
    level: Level
    pressure: float | None
    weights: list[int]
    """Endpoint weights, at least 1, in the order of the instances."""
    slots: list[float]
    mean: float | None
    reading: TierReading
    deadline: float
    arrived: bool
    """Whether a correction that eased is now where it belongs."""


@record
class Forced:
    """An order in force that one tier gets all requests (`core/force.py`)."""

    tier: TierName
    until: float
    """Monotonic seconds."""
    until_unix_s: float
    who: str
    why: str


@record
class ModelState:
    """One model: its tiers, its spill and the plan that was published."""

    model: Model
    tiers: tuple[TierState, ...]
    """With the newest samples."""
    steps: tuple[TierStep, ...]
    """What was last decided upon; quiet samples may have come since."""
    spill: SpillState
    plan: ModelPlan
    deadline: float
    forced: Forced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """Everything. Models that nothing happened to stay the same objects."""

    topology: Topology
    models: tuple[ModelState, ...]
    plans: tuple[ModelPlan, ...]
    index: Mapping[InstanceId, tuple[int, int, int]]
    """Where an instance is: model, tier and position."""
    started_at: float
    deadline: float
    pending: tuple[Event, ...] = ()
    """Events of a change of topology that the next evaluation reports."""

    def instance(self, instance: InstanceId) -> InstanceState | None:
        """Return the state of an instance, or None when there is no such instance."""
        where = self.index.get(instance)
        if where is None:
            return None
        model, tier, position = where
        return self.models[model].tiers[tier].instances[position]
