"""How much of a model's traffic each tier passes on to the next: fed forward from demand.

With the offered load lambda (requests/s for the model) and a tier's learned capacity mu (requests/s),
the tier keeps what loads it to `target` and spills the rest:

    s = max(0, 1 - target * mu * (1 - queue_trim * min(1, queue / queue_scale)) / lambda)

Nothing is chased by feedback except the queue, which corrects a wrong mu. Only the queue beyond the
free slots counts: requests that wait at one instance while another has room are a matter of endpoint
weights. While the queue is long, the slots that really run are learned, so that a configured number
that the KV cache cannot hold is corrected too.

Where demand is unknown (an engine without counters) a PI on the tier's pressure takes over, or AIMD
when the loop is slow. A frozen tier holds. Faults act at once; everything else is rate-limited.
Shares multiply down the chain: primary 1-s1, fallback s1*(1-s2), the last tier takes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import NamedTuple

from xds_server.core import demand as demands
from xds_server.core.demand import Throughput
from xds_server.core.flow import InstanceFlow
from xds_server.core.limits import Limit
from xds_server.core.plan import Level, Reason
from xds_server.core.policy import SpillPolicy
from xds_server.core.record import record

_SLOTS_MIN = 1e-6
"""Fewer slots than this are none: a number so small would divide to infinity."""
_FILL_MIN = 0.1
"""An engine that runs nothing while requests wait is stuck, not small: the fault rules deal with it."""

_REST = Reason(rule="last_tier", text="It takes whatever the tiers before it pass on.")
_UNAVAILABLE = Reason(rule="tier_unavailable", text="No instance may take requests.")
_FITS = Reason(rule="fits", text="Everything that is offered fits.")
_UNPROVEN = Reason(
    rule="capacity_unproven",
    text="Too few requests were completed to know the capacity, and nothing presses.",
)
_HELD = Reason(rule="telemetry_hold", text="Too little is known: the last share is kept.")
_SILENT = Reason(
    rule="telemetry_silent",
    text="Nothing is known of it since it may serve again: it gets what its ceilings allow.",
)


@record
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
    """Mean pressure of its instances; None when unknown."""
    flows: tuple[InstanceFlow, ...]
    """One per instance that has ever sent a sample, whatever its state."""
    limit: Limit
    is_static: bool
    level: Level
    frozen: bool
    """Too little is known (more than half of the tier is blind): the spill holds."""
    lag_s: float | None
    """Delay of the loop: age of the samples when they are used; None when unknown."""


@record
class TierSpill:
    """What one tier's spill remembers between steps."""

    spill: float = 0.0
    """Share passed on, as decided; moves with the rate limits."""
    published: float = 0.0
    """The same as given out: follows `spill` in steps of at least `publish_change`."""
    fill_ratio: float = 1.0
    """Learned share of the available slots that can really run."""
    available_slots: float = 0.0
    """As of the last step: when it fell, the rate limit does not apply."""
    integral: float = 0.0
    """The integrator of the PI and what AIMD wants, in units of spill; follows what demand wants."""
    cut_at: float | None = None
    """When AIMD last cut what the tier keeps; None while it is not in charge."""
    is_easing: bool = False
    """Telemetry has returned and the spill has not yet met what is wanted: it moves slowly."""
    reason: Reason = _FITS


@record
class SpillState:
    """What a model's spill remembers between steps."""

    tiers: tuple[TierSpill, ...]
    at: float | None = None
    """`now` of the last step; None before the first."""
    demand: float | None = None
    """The last known offered load of the model, requests/s."""
    unseen_ratio: float = 0.0
    """Smoothed share given to static tiers: no instance saw these requests."""


@record
class TierShare:
    """What one tier is given."""

    share: float
    """Share of the model's requests, 0-1; all tiers of a model add up to 1."""
    spill: float
    """Share of what reaches this tier that it passes on, 0-1."""
    demand: float | None
    """Requests/s offered to the model; None when unknown."""
    capacity: float | None
    """Requests/s that this tier can complete now; None for a static tier."""
    reason: Reason


class _Clock(NamedTuple):
    now: float
    elapsed_s: float
    is_first: bool
    """There was no step before: nothing limits how far a share may move."""


class _Tier(NamedTuple):
    """What one tier's decision rests on."""

    memory: TierSpill
    reading: TierReading
    throughput: Throughput
    capacity: float
    """Requests/s under the ceilings and the learned slots."""
    offered: float | None
    """Requests/s that reach this tier."""


def initial(tiers: int) -> SpillState:
    """Return the state of a model with this many tiers that never spilled."""
    return SpillState(tiers=(TierSpill(),) * tiers)


def step(
    state: SpillState,
    readings: Sequence[TierReading],
    policy: SpillPolicy,
    now: float,
    *,
    forced: int | None = None,
) -> tuple[SpillState, tuple[TierShare, ...], float | None]:
    """Decide every tier's share.

    Args:
        state: What the last step returned, or `initial`.
        readings: One per tier in chain order; the last one takes whatever the others pass on.
        policy: The thresholds.
        now: Monotonic seconds, on the clock of the samples.
        forced: Position of the tier that really gets everything, by an operator's order.

    Returns:
        The new state, one share per tier, and when to step again though no sample came (None: no need).
    """
    is_first = state.at is None
    clock = _Clock(now, 0.0 if state.at is None else max(0.0, now - state.at), is_first)
    throughputs = [demands.add_up(reading.flows) for reading in readings]
    demand = state.demand
    is_sent_to_engines = forced is None or not readings[forced].is_static
    if is_sent_to_engines and any(each.available_slots > _SLOTS_MIN for each in readings):
        # While no engine is given anything there is nothing to see, not nothing to do.
        demand = demands.offered(
            demand,
            throughputs,
            unseen_ratio=state.unseen_ratio,
            policy=policy,
            elapsed_s=clock.elapsed_s,
        )
    memories: list[TierSpill] = []
    shares: list[TierShare] = []
    reaching = 1.0
    unseen = 0.0
    lag_s = 0.0
    is_moving = False
    last = len(readings) - 1
    for number, (reading, before) in enumerate(zip(readings, state.tiers, strict=True)):
        memory = _learn_slots(before, reading, policy, clock)
        capacity = (
            throughputs[number].per_slot(policy) * reading.available_slots * memory.fill_ratio
        )
        if number == last or reading.is_static:
            if memory.reason is not _REST or memory.spill or memory.published:
                memory = replace(memory, spill=0.0, published=0.0, reason=_REST)
        else:
            reaching_per_s = None if demand is None else demand * reaching
            tier = _Tier(memory, reading, throughputs[number], capacity, reaching_per_s)
            wanted, memory = _decide(tier, policy, clock)
            is_moving = is_moving or memory.spill != wanted
        spill = memory.published
        share = reaching * (1.0 - spill)
        shares.append(
            TierShare(
                share=share,
                spill=spill,
                demand=demand,
                capacity=None if reading.is_static else capacity,
                reason=memory.reason,
            )
        )
        memories.append(memory)
        reaching *= spill
        if reading.is_static:
            unseen += share
        if reading.lag_s is not None:
            lag_s = max(lag_s, reading.lag_s)
    if forced is not None:
        unseen = float(readings[forced].is_static)
    # The flows show what proxies were told one loop delay ago, smoothed; so must this.
    moved = 1.0 - exp(-clock.elapsed_s / (policy.demand_smoothing_s + lag_s))
    after = SpillState(
        tiers=tuple(memories),
        at=now,
        demand=demand,
        unseen_ratio=state.unseen_ratio + (unseen - state.unseen_ratio) * moved,
    )
    return after, tuple(shares), now + policy.step_s if is_moving else None


def _learn_slots(
    memory: TierSpill, reading: TierReading, policy: SpillPolicy, clock: _Clock
) -> TierSpill:
    """Believe the slots that run while a long queue waits for more."""
    seen = reading.available_slots * reading.fresh_ratio
    if reading.frozen or seen <= _SLOTS_MIN or reading.running is None or reading.waiting is None:
        return memory
    occupied = min(1.0, reading.running / seen)
    fill = memory.fill_ratio
    if reading.waiting >= policy.slots_queue_ratio * seen:
        fill += (occupied - fill) * (1.0 - exp(-clock.elapsed_s / policy.slots_learn_s))
    elif fill < 1.0:
        fill += (1.0 - fill) * (1.0 - exp(-clock.elapsed_s / policy.slots_forget_s))
    fill = max(fill, occupied, _FILL_MIN)
    return memory if fill == memory.fill_ratio else replace(memory, fill_ratio=fill)


def _decide(tier: _Tier, policy: SpillPolicy, clock: _Clock) -> tuple[float, TierSpill]:
    """Return the spill that is wanted, and the memory with the spill that is allowed now."""
    memory, reading = tier.memory, tier.reading
    available = reading.available_slots
    if available <= _SLOTS_MIN:
        return 1.0, replace(
            memory,
            spill=1.0,
            published=1.0,
            available_slots=0.0,
            integral=1.0,
            cut_at=None,
            reason=_UNAVAILABLE,
        )
    if reading.frozen or reading.fresh_ratio <= 0.0:
        if memory.reason is _UNAVAILABLE or memory.reason is _SILENT:
            # It can serve again: a share of nothing is not worth holding, and silence halts no tier.
            # Nor does it flood one: a single instance on trial is not a whole tier.
            spill = max(0.0, 1.0 - available / reading.slots)
            return spill, replace(
                memory,
                spill=spill,
                published=spill,
                available_slots=available,
                is_easing=True,
                reason=_SILENT,
            )
        return memory.spill, replace(memory, is_easing=True, reason=_HELD)
    if tier.offered is not None:
        wanted, reason = _from_demand(tier, tier.offered, policy)
        integral, cut_at = wanted, None
    elif reading.pressure is not None:
        wanted, reason, integral, cut_at = _from_pressure(tier, reading.pressure, policy, clock)
    else:
        return memory.spill, replace(memory, reason=_HELD)
    if reading.level is Level.CRITICAL and wanted < policy.minimum_above_critical:
        wanted = policy.minimum_above_critical
        reason = Reason(
            rule="critical_minimum",
            text=f"The tier is critical: at least {wanted:.0%} is passed on.",
        )
    # A limit is a promise about the tier: nothing smooths it.
    floor = _beyond_limit(tier)
    if floor > wanted:
        wanted, reason = floor, _limited(tier, floor)
    spill = wanted
    has_lost = available < memory.available_slots
    if not clock.is_first and not (has_lost and wanted > memory.spill):
        rise_per_s = policy.ease_per_s if memory.is_easing else policy.rise_per_s
        fall_per_s = policy.ease_per_s if memory.is_easing else policy.fall_per_s
        spill = min(spill, memory.spill + rise_per_s * clock.elapsed_s)
        spill = max(spill, memory.spill - fall_per_s * clock.elapsed_s, floor)
    if spill == 0.0 and tier.offered is None and reading.level is Level.HEALTHY:
        # Over: the next overload starts afresh.
        wanted, integral, cut_at, reason = 0.0, 0.0, None, _FITS
    published = memory.published
    if spill == 0.0 or abs(spill - published) > policy.publish_change:
        published = spill
    published = max(published, floor)
    if published == memory.published and reason.rule == memory.reason.rule:
        reason = memory.reason
    return wanted, TierSpill(
        spill=spill,
        published=published,
        fill_ratio=memory.fill_ratio,
        available_slots=available,
        integral=integral,
        cut_at=cut_at,
        is_easing=memory.is_easing and spill != wanted,
        reason=reason,
    )


def _from_demand(tier: _Tier, offered: float, policy: SpillPolicy) -> tuple[float, Reason]:
    """Keep what loads the tier to the target."""
    reading, capacity = tier.reading, tier.capacity
    if reading.level is Level.HEALTHY:
        if tier.throughput.completed < policy.prior_requests:
            return 0.0, _UNPROVEN
        if offered < capacity:
            return 0.0, _FITS
    usable = reading.available_slots * tier.memory.fill_ratio * reading.fresh_ratio
    waiting = reading.waiting or 0.0
    queue = max(0.0, min(waiting, waiting + (reading.running or 0.0) - usable))
    trim = policy.queue_trim * min(1.0, queue / (policy.queue_scale_ratio * usable))
    kept = policy.target * capacity * (1.0 - trim)
    if offered <= kept:
        return 0.0, _FITS
    spill = 1.0 - kept / offered
    return spill, Reason(
        rule="demand_exceeds_capacity",
        text=f"{offered:.1f} requests/s are offered, {capacity:.1f} can be completed"
        + (f", {queue:.0f} wait beyond the free slots." if queue >= 1.0 else "."),
        inputs={"offered_per_s": offered, "capacity_per_s": capacity, "queue": queue},
    )


def _from_pressure(
    tier: _Tier, pressure: float, policy: SpillPolicy, clock: _Clock
) -> tuple[float, Reason, float, float | None]:
    """Chase the setpoint of the pressure, because demand is unknown.

    Returns:
        Wanted spill, reason, the integrator, and when AIMD last cut.
    """
    memory = tier.memory
    error = pressure - policy.pi_setpoint
    if memory.spill == 0.0 and tier.reading.level is Level.HEALTHY:
        return 0.0, _FITS, 0.0, None
    inputs: dict[str, float | str] = {"pressure": pressure, "setpoint": policy.pi_setpoint}
    if (tier.reading.lag_s or 0.0) > policy.aimd_above_lag_s:
        kept, cut_at = 1.0 - memory.integral, memory.cut_at
        if error <= 0.0:
            kept = min(1.0, kept + policy.aimd_step_per_s * clock.elapsed_s)
        elif cut_at is None or clock.now >= cut_at + policy.aimd_every_s:
            kept *= policy.aimd_factor
            cut_at = clock.now
        wanted = 1.0 - kept
        text = f"Demand is unknown and the loop slow; pressure is {pressure:.2f} (AIMD)."
        return wanted, Reason(rule="pressure_aimd", text=text, inputs=inputs), wanted, cut_at
    integral = memory.integral + policy.pi_integral * error * clock.elapsed_s
    # Clamped, so that it has nothing to unwind when the pressure turns.
    integral = min(1.0, max(0.0, integral))
    wanted = min(1.0, max(0.0, integral + policy.pi_proportional * error))
    text = f"Demand is unknown; pressure is {pressure:.2f} (PI)."
    return wanted, Reason(rule="pressure_pi", text=text, inputs=inputs), integral, None


def _beyond_limit(tier: _Tier) -> float:
    """Return the least spill that keeps the tier within its own limit."""
    limit, offered = tier.reading.limit, tier.offered
    if offered is None or offered <= 0.0:
        return 0.0
    kept = 1.0
    if limit.requests_per_second is not None:
        kept = min(kept, limit.requests_per_second / offered)
    tokens = tier.throughput.tokens_per_request
    if limit.tokens_per_second is not None and tokens:
        kept = min(kept, limit.tokens_per_second / (offered * tokens))
    return 1.0 - kept


def _limited(tier: _Tier, floor: float) -> Reason:
    return Reason(
        rule="tier_limit",
        text=f"The tier's own limit lets it keep {1.0 - floor:.0%} of {tier.offered:.1f} requests/s.",
        inputs={"offered_per_s": tier.offered or 0.0},
    )
