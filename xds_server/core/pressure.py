"""How hard an instance is working: KV-cache usage plus its queue.

`u = kv_ratio + min(1, waiting / (waiting_scale_ratio * slots))`, the queue first: SGLang queues at a KV
usage of 0.84, and vLLM's usage falls while it preempts under a full queue. A number that is missing is
carried over from the last sample until `blind_after_s`; after that it is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from xds_server.core.policy import WeightPolicy
from xds_server.core.sample import EngineFacts, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The last known load of an engine whose samples are partial. `*_at` is when each was true."""

    kv: float | None
    kv_at: float
    waiting: float | None
    waiting_at: float
    running: float | None
    running_at: float


def carry(held: Held | None, previous: Sample | None, sample: Sample) -> Held | None:
    """Complete a partial sample from what was known before.

    Args:
        held: What was carried so far.
        previous: The sample before this one.
        sample: The new sample.

    Returns:
        None when the sample is complete, which is the rule.
    """
    engine = sample.engine
    if engine.kv_ratio is not None and engine.waiting is not None and engine.running is not None:
        return None
    if held is None:
        held = _of(previous)
    if held is not None and (previous is None or engine.restarts > previous.engine.restarts):
        held = None
    at = sample.observed_at
    if held is None:
        return Held(
            kv=engine.kv_ratio,
            kv_at=at,
            waiting=engine.waiting,
            waiting_at=at,
            running=engine.running,
            running_at=at,
        )
    kv = engine.kv_ratio
    waiting = engine.waiting
    running = engine.running
    return Held(
        kv=held.kv if kv is None else kv,
        kv_at=held.kv_at if kv is None else at,
        waiting=held.waiting if waiting is None else waiting,
        waiting_at=held.waiting_at if waiting is None else at,
        running=held.running if running is None else running,
        running_at=held.running_at if running is None else at,
    )


def read(
    engine: EngineFacts,
    held: Held | None,
    *,
    slots: float,
    policy: WeightPolicy,
    blind_after_s: float,
    now: float,
) -> float | None:
    """Return the pressure of an instance, 0-2; None when it is unknown.

    Args:
        engine: The last sample's facts.
        held: What completes them; None when they are complete.
        slots: Concurrent requests that the instance can run.
        policy: Holds the scale of the queue.
        blind_after_s: Age from which a carried number is unknown.
        now: Monotonic seconds.

    Returns:
        KV usage plus queue. An engine that never reported KV usage is judged by its busy slots, one
        that never reported a queue by its KV usage alone. A number that was known and is lost for
        longer than `blind_after_s` makes the pressure unknown.
    """
    kv, waiting, running = engine.kv_ratio, engine.waiting, engine.running
    if held is not None:
        kv = held.kv
        waiting = held.waiting
        if (kv is not None and now >= held.kv_at + blind_after_s) or (
            waiting is not None and now >= held.waiting_at + blind_after_s
        ):
            return None
        running = None if now >= held.running_at + blind_after_s else held.running
    if kv is None:
        if running is None:
            return None
        kv = min(1.0, running / slots)
    return total(kv, waiting or 0.0, slots, policy)


def total(kv: float, waiting: float, slots: float, policy: WeightPolicy) -> float:
    """Add the queue to the KV usage; by position, as it is the hot path of a complete sample."""
    if waiting <= 0.0:
        return kv
    queue = waiting / (policy.waiting_scale_ratio * slots)
    return kv + (min(1.0, queue))


def deadline(held: Held | None, blind_after_s: float, now: float) -> float:
    """Return when a carried number becomes unknown; infinity when never."""
    if held is None:
        return inf
    ends = (
        held.kv_at + blind_after_s,
        held.waiting_at + blind_after_s,
        held.running_at + blind_after_s,
    )
    return min((end for end in ends if end > now), default=inf)


def _of(sample: Sample | None) -> Held | None:
    if sample is None:
        return None
    engine, at = sample.engine, sample.observed_at
    return Held(
        kv=engine.kv_ratio,
        kv_at=at,
        waiting=engine.waiting,
        waiting_at=at,
        running=engine.running,
        running_at=at,
    )
