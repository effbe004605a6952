"""The desired routing state of the fleet, with the reason of every number in it.

A plan is compared by value; the plan of a model that did not change is the same object as before,
so that later stages can skip it by identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from xds_server.core.model import ClassName, InstanceId, ModelName, TierName
from xds_server.core.record import record
from xds_server.core.sentences import SENTENCES

TIER_WEIGHT_TOTAL = 1000
"""The tier weights of a model add up to this: a step of 0.1 %."""
FORCED = "forced"
"""Rule of the reason of every tier of a model while an operator gives one of them everything."""


class FaultState(StrEnum):
    """Where an instance is on its way between fault and health (`core/faults.py`)."""

    HEALTHY = "healthy"
    WARMING = "warming"
    DRAINING = "draining"
    DOWN = "down"
    RECOVERING = "recovering"
    QUARANTINED = "quarantined"


class Freshness(StrEnum):
    """How an instance's telemetry may be used."""

    FRESH = "fresh"
    HOLD = "hold"
    BLIND = "blind"


class Level(StrEnum):
    """How pressed a tier is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    CRITICAL = "critical"


class EndpointHealth(StrEnum):
    """What the proxies are told about an endpoint."""

    HEALTHY = "healthy"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


@record
class Reason:
    """Why a number is what it is; the same text in log, API, CLI and page."""

    rule: str
    """Stable name of the rule that decided, e.g. `kv_pressure`."""
    text: str
    """One sentence for a person."""
    inputs: Mapping[str, float | str] = field(default_factory=dict)
    """The numbers that the rule looked at."""


LoadBasis = tuple[str, float, float, float | None]
"""Rule, capacity K, correction and the tier's mean pressure: all that the reason of an ordinary weight says."""


@record
class InstancePlan:
    """One endpoint as the proxies shall see it."""

    id: InstanceId
    state: FaultState
    freshness: Freshness
    ceiling: float
    """Share of its capacity that faults allow, 0-1."""
    weight: int
    """`load_balancing_weight`, at least 1; meaningless unless `health` is healthy."""
    health: EndpointHealth
    pressure: float | None
    basis: Reason | LoadBasis
    """What `reason` is made of; ten thousand of these are made that nobody asks about."""

    @property
    def reason(self) -> Reason:
        """Why it has its weight."""
        basis = self.basis
        if not isinstance(basis, tuple):
            return basis
        rule, slots, correction, mean = basis
        inputs: dict[str, float | str] = {"slots": slots, "correction": correction}
        if self.pressure is not None:
            inputs["pressure"] = self.pressure
        if mean is not None:
            inputs["mean"] = mean
        return Reason(rule=rule, text=SENTENCES[rule], inputs=inputs)

    @property
    def effective_weight(self) -> int:
        """What it gets of its tier's weights: nothing unless it is healthy."""
        return self.weight if self.health is EndpointHealth.HEALTHY else 0

    @property
    def rule(self) -> str:
        """The rule of `reason`."""
        return self.basis[0] if isinstance(self.basis, tuple) else self.basis.rule


@record
class TierPlan:
    """One tier: its share of the model's requests, and the endpoints inside."""

    name: TierName
    level: Level
    pressure: float | None
    share: float
    """Share of the model's requests that this tier is given, 0-1."""
    weight: int
    """`share` as an integer of `TIER_WEIGHT_TOTAL`; all tiers of a model add up to it."""
    spill: float
    """Share of what reaches this tier that it passes on, 0-1."""
    demand: float | None
    """Requests/s offered to the model, as far as known."""
    capacity: float | None
    """Requests/s that this tier can complete now."""
    reason: Reason
    instances: tuple[InstancePlan, ...] = ()


@record
class ClassPlan:
    """One class of a model's requests."""

    name: ClassName
    demand_ratio: float
    """Its share of the model's requests, as believed, 0-1."""
    weights: tuple[int, ...]
    """Its own weight of each tier, in chain order; they add up to `TIER_WEIGHT_TOTAL`."""
    is_shed: bool
    """It is not served for now: it gets the static answer, or where `is_rejected` a 429."""
    is_rejected: bool
    reason: Reason


@record
class ModelPlan:
    """A model's tiers in chain order."""

    name: ModelName
    tiers: tuple[TierPlan, ...]
    classes: tuple[ClassPlan, ...] = ()
    """From most to least critical; none = all requests follow the weights of the tiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in the brain: one log line, one row of a timeline."""

    name: str
    """snake_case, past tense: `instance_down`, `level_changed`."""
    model: ModelName
    tier: TierName
    instance: InstanceId | None
    reason: Reason
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every proxy shall do, and when to think again."""

    models: tuple[ModelPlan, ...]
    next_deadline: float | None
    """Monotonic seconds at which `evaluate` must run again even without a sample."""
    events: tuple[Event, ...] = ()
    """What this evaluation decided; empty when nothing did."""
