"""One instance's step: a new sample, an operator's word, or the passing of time.

The hot path is a healthy instance with an unremarkable sample: nothing but the sample, its flow and
its pressure change, and no rule is asked that could not say anything new.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from xds_server.core import faults, flow, freshness, hysteresis, pressure, vram, witness
from xds_server.core.finding import Condition, judge
from xds_server.core.hysteresis import Latch
from xds_server.core.inputs import Evidence
from xds_server.core.model import Instance
from xds_server.core.plan import FaultState, Freshness
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineState, GpuHealth, MemoryKind, Sample
from xds_server.core.state import InstanceState
from xds_server.core.track import Context, Track
from xds_server.core.vram import VramWatch

_HEALTHY = FaultState.HEALTHY
_UP = EngineState.UP
_OK, _UNKNOWN, _THROTTLED = GpuHealth.OK, GpuHealth.UNKNOWN, GpuHealth.THROTTLED
_FRESH = Freshness.FRESH
_DEDICATED = MemoryKind.DEDICATED
# Members are bound once: looking one up in its enum, or hashing it, is a Python call.


def unseen(instance: Instance, track: Track, policy: Policy) -> InstanceState:
    """Return the state of an instance that has sent nothing yet: the static weight of its capacity."""
    return InstanceState(
        instance=instance,
        sample=None,
        held=None,
        flow=None,
        track=track,
        vram=vram.UNSEEN,
        throttle=hysteresis.OFF,
        freshness=Freshness.BLIND,
        slots=instance.capacity,
        ceiling=faults.ceiling(track, policy.recovery),
        pressure=None,
        lag_s=0.0,
        deadline=faults.deadline(track, None, policy.recovery),
    )


def adopt(state: InstanceState, configured: Instance, policy: Policy, now: float) -> InstanceState:
    """Return the state under a changed configuration or policy."""
    slots = configured.capacity
    if slots is None:
        learned = None if state.instance.capacity is not None else state.slots
        slots = (None if state.sample is None else state.sample.engine.slots) or learned
    ceiling = _ceiling(state.track, state.vram, state.throttle, policy)
    return elapse(
        replace(state, instance=configured, slots=slots, ceiling=ceiling, deadline=-inf),
        policy,
        now,
    )


def observe(state: InstanceState, sample: Sample, policy: Policy, now: float) -> InstanceState:
    """Take a sample.

    Args:
        state: The instance so far.
        sample: What its agent said; one that is older than the last or equal to it changes nothing.
        policy: The thresholds.
        now: Monotonic seconds.

    Returns:
        The new state, or the same object.
    """
    previous = state.sample
    observed_at = sample.observed_at
    if (
        previous is not None
        and observed_at <= previous.observed_at
        and (observed_at < previous.observed_at or sample == previous)
    ):
        return state
    telemetry = policy.telemetry
    # As `freshness.classify` and `freshness.deadline`, without the calls.
    due = observed_at + telemetry.interval_s * telemetry.stale_intervals
    if now >= due or now >= observed_at + telemetry.blind_after_s:
        return _late(state, sample, policy, now)
    engine, gpu = sample.engine, sample.gpu
    track, watch, throttle, ceiling = state.track, state.vram, state.throttle, state.ceiling
    if (
        track.state is not _HEALTHY
        or engine.state is not _UP
        or engine.restarts != track.restarts
        or sample.draining
        or (gpu is not None and gpu.health is not _OK and gpu.health is not _UNKNOWN)
    ):
        context = Context(state.instance.id, policy.recovery, now)
        if track.restarts is not None and engine.restarts > track.restarts:
            watch = vram.restart(watch)
        track = faults.observe(track, sample, context)
    if gpu is not None:
        # As `vram.observe` for memory that is there, without the call: nothing trips at or below
        # `high`, and nothing is learned from more than the least ratio.
        ratio, free, latch = gpu.vram_ratio, gpu.vram_free_bytes, watch.latch
        least = watch.least
        if (
            ratio is None
            or free is None
            or least is None
            or ratio < least
            or ratio > policy.vram.high
            or free < policy.vram.free_floor_bytes
            or latch.on
            or latch.since is not None
            or gpu.memory_kind is not _DEDICATED
        ):
            watch = vram.observe(watch, sample, policy.vram, now, forget_s=telemetry.blind_after_s)
        if throttle is not hysteresis.OFF or gpu.health is _THROTTLED:
            throttle = _throttle(throttle, sample, policy, now)
    elif watch.latch is not hysteresis.OFF or throttle is not hysteresis.OFF:
        watch = vram.silence(watch, forget_s=telemetry.blind_after_s, now=now)
        throttle = hysteresis.silence(throttle, forget_s=telemetry.blind_after_s, now=now)
    if track is not state.track or watch is not state.vram or throttle is not state.throttle:
        ceiling = _ceiling(track, watch, throttle, policy)
    slots = state.instance.capacity or engine.slots or _learned(state.slots, sample)
    held, kv, waiting = state.held, engine.kv_ratio, engine.waiting
    weights = policy.weights
    load: float | None
    if held is None and kv is not None and waiting is not None and engine.running is not None:
        load = pressure.total(kv, waiting, slots or weights.default_slots, weights)
    else:
        held = pressure.carry(held, previous, sample)
        load = pressure.read(
            engine,
            held,
            slots=slots or weights.default_slots,
            policy=weights,
            blind_after_s=telemetry.blind_after_s,
            now=now,
        )
    if (
        track.state is not _HEALTHY
        or watch.latch.since is not None
        or watch.latch.silent_since is not None
        or throttle is not hysteresis.OFF
        or held is not None
    ):
        due = min(due, _deadline(track, watch, throttle, sample, policy))
        due = min(due, pressure.deadline(held, telemetry.blind_after_s, now))
    flowed = flow.observe(state.flow, previous, sample, policy.spill)
    return InstanceState(
        state.instance,
        sample,
        held,
        flowed,
        track,
        watch,
        throttle,
        _FRESH,
        slots,
        ceiling,
        load,
        now - observed_at,
        min(due, observed_at + telemetry.blind_after_s),
        engine.running,
        waiting,
    )


def elapse(state: InstanceState, policy: Policy, now: float) -> InstanceState:
    """Let time pass without a new sample.

    Args:
        state: The instance so far.
        policy: The thresholds.
        now: Monotonic seconds.

    Returns:
        The new state, or the same object when nothing was due.
    """
    sample = state.sample
    observed_at = None if sample is None else sample.observed_at
    age = freshness.classify(observed_at, policy.telemetry, now)
    fresh = age is _FRESH
    context = Context(state.instance.id, policy.recovery, now)
    finding = None if sample is None else judge(sample)
    track = faults.settle(state.track, finding, context, fresh=fresh)
    watch, throttle, held = state.vram, state.throttle, state.held
    load, forget_s = state.pressure, policy.telemetry.blind_after_s
    if fresh and sample is not None:
        watch = vram.observe(watch, sample, policy.vram, now, forget_s=forget_s)
        throttle = _throttle(throttle, sample, policy, now)
        if held is not None:
            load = pressure.read(
                sample.engine,
                held,
                slots=state.slots or policy.weights.default_slots,
                policy=policy.weights,
                blind_after_s=policy.telemetry.blind_after_s,
                now=now,
            )
    else:
        track = faults.expire(track, observed_at, context)
        watch = vram.silence(watch, forget_s=forget_s, now=now)
        throttle = hysteresis.silence(throttle, forget_s=forget_s, now=now)
        if age is Freshness.BLIND:
            load = None
    due = min(
        freshness.deadline(observed_at, age, policy.telemetry),
        _deadline(track, watch, throttle, sample, policy),
    )
    if fresh:
        due = min(due, pressure.deadline(held, policy.telemetry.blind_after_s, now))
    if (
        track is state.track
        and watch is state.vram
        and throttle is state.throttle
        and age is state.freshness
        and load == state.pressure
        and due == state.deadline
    ):
        return state
    return replace(
        state,
        track=track,
        vram=watch,
        throttle=throttle,
        freshness=age,
        ceiling=_ceiling(track, watch, throttle, policy),
        pressure=load,
        deadline=due,
    )


def drain(state: InstanceState, who: str | None, policy: Policy, now: float) -> InstanceState:
    """Let an operator drain the instance (`who`), or take the drain back (None)."""
    context = Context(state.instance.id, policy.recovery, now)
    track = faults.drain(state.track, context, who=who)
    if track is state.track:
        return state
    ceiling = _ceiling(track, state.vram, state.throttle, policy)
    return elapse(replace(state, track=track, ceiling=ceiling), policy, now)


def hear(state: InstanceState, evidence: Evidence, policy: Policy, now: float) -> InstanceState:
    """Take in what proxies saw of its requests."""
    sample = state.sample
    observed_at = None if sample is None else sample.observed_at
    track = witness.witness(
        state.track,
        evidence,
        None if sample is None else judge(sample),
        Context(state.instance.id, policy.recovery, now),
        fresh=freshness.classify(observed_at, policy.telemetry, now) is _FRESH,
    )
    if track is state.track:
        return state
    ceiling = _ceiling(track, state.vram, state.throttle, policy)
    return elapse(replace(state, track=track, ceiling=ceiling), policy, now)


def _late(state: InstanceState, sample: Sample, policy: Policy, now: float) -> InstanceState:
    """Keep a sample that was stale on arrival: it says what was, but is no evidence."""
    held = pressure.carry(state.held, state.sample, sample)
    slots = state.instance.capacity or sample.engine.slots or state.slots
    # A fault that was true a while ago is still the last known truth; good news must be fresh.
    track = state.track
    if judge(sample).condition is Condition.FAULT or sample.draining:
        track = faults.observe(track, sample, Context(state.instance.id, policy.recovery, now))
    load = pressure.read(
        sample.engine,
        held,
        slots=slots or policy.weights.default_slots,
        policy=policy.weights,
        blind_after_s=policy.telemetry.blind_after_s,
        now=now,
    )
    late = replace(
        state,
        sample=sample,
        held=held,
        flow=flow.observe(state.flow, state.sample, sample, policy.spill),
        track=track,
        slots=slots,
        pressure=load,
        running=sample.engine.running,
        waiting=sample.engine.waiting,
        lag_s=now - sample.observed_at,
        deadline=-inf,
    )
    return elapse(late, policy, now)


def _learned(slots: float | None, sample: Sample) -> float | None:
    """Learn the capacity of an engine that does not say it: what it runs while others wait."""
    running = sample.engine.running
    if running and sample.engine.waiting and (slots is None or running > slots):
        return running
    return slots


def _throttle(latch: Latch, sample: Sample, policy: Policy, now: float) -> Latch:
    gpu = sample.gpu
    if gpu is None or gpu.health is GpuHealth.UNKNOWN:
        return hysteresis.silence(latch, forget_s=policy.telemetry.blind_after_s, now=now)
    throttled = gpu.health is GpuHealth.THROTTLED
    hold_s = policy.failures.unthrottled_s if latch.on else policy.failures.throttled_s
    return hysteresis.step(latch, changing=throttled is not latch.on, hold_s=hold_s, now=now)


def _ceiling(track: Track, watch: VramWatch, throttle: Latch, policy: Policy) -> float:
    share = faults.ceiling(track, policy.recovery)
    if throttle.on:
        share *= policy.failures.throttled_ratio
    if watch.latch.on:
        share *= policy.vram.derate_ratio
    return share


def _deadline(
    track: Track, watch: VramWatch, throttle: Latch, sample: Sample | None, policy: Policy
) -> float:
    observed_at = None if sample is None else sample.observed_at
    due = faults.deadline(track, observed_at, policy.recovery)
    forget_s, failures = policy.telemetry.blind_after_s, policy.failures
    due = min(due, vram.deadline(watch, policy.vram, forget_s=forget_s))
    hold_s = failures.unthrottled_s if throttle.on else failures.throttled_s
    return min(due, hysteresis.deadline(throttle, hold_s=hold_s, forget_s=forget_s))
