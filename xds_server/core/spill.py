"""How much of a model's traffic each tier passes on to the next: fed forward from demand.

With the offered load lambda (requests/s for the model) and a tier's learned capacity mu (requests/s),
the tier keeps what loads it to `target` and spills the rest:

    s = max(0, 1 - target * mu * (1 - queue_trim * min(1, queue / queue_scale)) / lambda)

Nothing is chased by feedback except the queue, which corrects a wrong mu. Where demand is unknown
(an engine without counters) a PI on the tier's pressure takes over, or AIMD when the loop is slow.
Shares multiply down the chain: primary 1-s1, fallback s1*(1-s2), static the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xds_server.core.flow import InstanceFlow
from xds_server.core.model import TierLimit
from xds_server.core.plan import Level, Reason
from xds_server.core.policy import SpillPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReading:
    """What is known about one tier at one moment."""

    slots: float
    """Concurrent requests that all its instances can run: the sum of K."""
    available_slots: float
    """The same under the ceilings that faults impose: the sum of K * ceiling."""
    fresh_ratio: float
    """Share of its instances with fresh telemetry, 0-1."""
    running: float | None
    """Requests being computed, over the fresh instances; None when unknown."""
    waiting: float | None
    """Requests queued in the engines, over the fresh instances; None when unknown."""
    pressure: float | None
    flows: tuple[InstanceFlow, ...]
    """One per instance that has ever sent a sample, whatever its state."""
    limit: TierLimit
    is_static: bool
    level: Level
    frozen: bool
    """Too little is known (design: more than half blind): the spill holds."""
    lag_s: float | None
    """Delay of the loop: age of the samples when they are used; None when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpill:
    """What one tier's spill remembers between steps."""

    spill: float = 0.0
    """Share passed on, as decided; moves with the rate limits."""
    published: float = 0.0
    """The same as given out: follows `spill` in steps of at least `publish_change`."""
    integral: float = 0.0
    """The integrator of the PI, in units of spill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillState:
    """What a model's spill remembers between steps."""

    tiers: tuple[TierSpill, ...]
    at: float | None = None
    """`now` of the last step; None before the first."""
    demand: float | None = None
    """The last known offered load of the model, requests/s."""
    static_ratio: float = 0.0
    """Smoothed share that the static tiers were given: these requests are invisible in the flows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierShare:
    """What one tier is given."""

    share: float
    """Share of the model's requests, 0-1; all tiers of a model add up to 1."""
    spill: float
    """Share of what reaches this tier that it passes on, 0-1."""
    demand: float | None
    """Requests/s offered to the model; None when unknown."""
    capacity: float | None
    """Requests/s that this tier can complete now; None when unknown."""
    reason: Reason


def initial(tiers: int) -> SpillState:
    """Return the state of a model with this many tiers that never spilled."""
    return SpillState(tiers=(TierSpill(),) * tiers)


def step(
    state: SpillState, readings: Sequence[TierReading], policy: SpillPolicy, now: float
) -> tuple[SpillState, tuple[TierShare, ...], float | None]:
    """Decide every tier's share.

    Args:
        state: What the last step returned, or `initial`.
        readings: One per tier in chain order; the last one is static.
        policy: The thresholds.
        now: Monotonic seconds, on the clock of the samples.

    Returns:
        The new state, one share per tier, and when to step again though no sample came (None: no need).
    """
    del policy
    shares: list[TierShare] = []
    rest = 1.0
    for reading in readings:
        spill = 0.0 if reading.is_static or reading.available_slots > 0.0 else 1.0
        shares.append(
            TierShare(
                share=rest * (1.0 - spill),
                spill=spill,
                demand=None,
                capacity=None,
                reason=Reason(rule="spill_none", text="Everything fits."),
            )
        )
        rest *= spill
    return SpillState(tiers=state.tiers, at=now), tuple(shares), None
