"""How pressed a tier is: healthy, degraded, critical, with hysteresis.

A level is entered at once, at its watermark. It is left only after `hold_s` without a queue and with
the pressure below the watermark minus the margin: vLLM saw-tooths between 1.0 and 0.75 while it
preempts, so pressure alone would flap. A tier that has become calm leaves straight to healthy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from xds_server.core.plan import Level
from xds_server.core.policy import KvPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTrack:
    """The level of one tier and the evidence for a lower one."""

    level: Level = Level.HEALTHY
    calm_since: float | None = None
    """Since when the pressure has been below `high` minus margin, with empty queues."""
    eased_since: float | None = None
    """The same for `critical`."""


def step(
    track: LevelTrack,
    *,
    pressure: float | None,
    queue_empty: bool,
    policy: KvPolicy,
    now: float,
) -> LevelTrack:
    """Take the tier's pressure of this moment.

    Args:
        track: The level so far.
        pressure: The tier's pressure; None when unknown, which keeps the level.
        queue_empty: Whether no engine of the tier reports waiting requests.
        policy: Watermarks, margin and hold.
        now: Monotonic seconds.

    Returns:
        The same object when nothing changed.
    """
    if pressure is None:
        return _timers(track, None, None)
    if pressure >= policy.critical:
        if track.level is Level.CRITICAL:
            return _timers(track, None, None)
        return LevelTrack(level=Level.CRITICAL)
    if track.level is Level.HEALTHY:
        return track if pressure < policy.high else LevelTrack(level=Level.DEGRADED)
    calm = eased = None
    if queue_empty and pressure < policy.high - policy.margin:
        calm = now if track.calm_since is None else track.calm_since
    if queue_empty and pressure < policy.critical - policy.margin:
        eased = now if track.eased_since is None else track.eased_since
    if calm is not None:
        if now >= calm + policy.hold_s:
            return LevelTrack()
    elif track.level is Level.CRITICAL and eased is not None and now >= eased + policy.hold_s:
        return LevelTrack(level=Level.DEGRADED)
    return _timers(track, calm, eased)


def deadline(track: LevelTrack, policy: KvPolicy) -> float:
    """Return when `step` must run again though no number changed; infinity when never."""
    if track.calm_since is not None:
        return track.calm_since + policy.hold_s
    if track.level is Level.CRITICAL and track.eased_since is not None:
        return track.eased_since + policy.hold_s
    return inf


def _timers(track: LevelTrack, calm: float | None, eased: float | None) -> LevelTrack:
    if track.calm_since == calm and track.eased_since == eased:
        return track
    return replace(track, calm_since=calm, eased_since=eased)
