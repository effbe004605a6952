"""GPU memory as a sign of a leak, a co-tenant or an OOM to come; never as load.

Engines reserve their share at start and stay there: an idle default vLLM sits at 92 %. What counts is
memory *above the reservation*: the ratio must exceed `max(high, reservation + margin)` for
`sustained_s`, or the free memory fall below a floor, which trips at once. It clears `clear_margin`
below the trip point after `sustained_s`.

The rule applies to dedicated memory. On a GPU that instances share the ratio belongs to all of them,
so only the floor counts; unified and coherent memory is the host's and says nothing about the engine.
A tripped instance is derated (`derate_ratio`) and its tier is at least degraded: it still serves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xds_server.core import hysteresis
from xds_server.core.hysteresis import Latch
from xds_server.core.policy import VramMode, VramPolicy
from xds_server.core.sample import MemoryKind, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class VramWatch:
    """What one instance's memory did so far."""

    latch: Latch = hysteresis.OFF
    least: float | None = None
    """The least ratio seen while learning the baseline."""
    learned_at: float | None = None
    """When learning ends; None before the first reading."""


_DEDICATED = MemoryKind.DEDICATED
_ABSOLUTE = VramMode.ABSOLUTE
UNSEEN = VramWatch()


def observe(
    watch: VramWatch, sample: Sample, policy: VramPolicy, now: float, *, forget_s: float
) -> VramWatch:
    """Take the sample's memory.

    Args:
        watch: The instance so far.
        sample: The last sample; stepping the same one again at its deadline is right.
        policy: Watermarks and times.
        now: Monotonic seconds.
        forget_s: A trip ends when nothing was read for this long.

    Returns:
        The same object when nothing changed. A missing reading neither trips nor clears; evidence
        that was still growing must begin anew.
    """
    gpu = sample.gpu
    if gpu is None or gpu.memory_kind is not _DEDICATED:
        return silence(watch, forget_s=forget_s, now=now)
    ratio, free = gpu.vram_ratio, gpu.vram_free_bytes
    if ratio is None and free is None:
        return silence(watch, forget_s=forget_s, now=now)
    if ratio is not None and (watch.learned_at is None or now < watch.learned_at):
        watch = _learn(watch, ratio, policy, now)
    short = free is not None and free < policy.free_floor_bytes
    point = None if gpu.shared else trip_point(watch, sample, policy, now)
    latch = watch.latch
    if (
        not latch.on
        and latch.since is None
        and not short
        and (ratio is None or point is None or ratio <= point)
    ):
        return watch
    if latch.on:
        if short or (free is None and (ratio is None or point is None)):
            changing = False
        else:
            changing = ratio is None or point is None or ratio < point - policy.clear_margin
        hold_s = policy.sustained_s
    else:
        changing = short or (ratio is not None and point is not None and ratio > point)
        hold_s = 0.0 if short else policy.sustained_s
    after = hysteresis.step(latch, changing=changing, hold_s=hold_s, now=now)
    return watch if after is latch else replace(watch, latch=after)


def trip_point(watch: VramWatch, sample: Sample, policy: VramPolicy, now: float) -> float | None:
    """Return the ratio above which memory is somebody else's; None while that is being learned.

    Args:
        watch: Holds the learned baseline.
        sample: May declare the reservation.
        policy: Mode, watermark and margin.
        now: Monotonic seconds.

    Returns:
        The literal watermark in absolute mode, else no less than the reservation plus the margin.
    """
    if policy.mode is _ABSOLUTE:
        return policy.high
    baseline = sample.engine.reserved_ratio
    if baseline is None:
        baseline = policy.reserved_ratio
    if baseline is None:
        if watch.least is None or watch.learned_at is None or now < watch.learned_at:
            return None
        baseline = watch.least
    return max(policy.high, baseline + policy.margin)


def deadline(watch: VramWatch, policy: VramPolicy, *, forget_s: float) -> float:
    """Return when the latch moves if nothing changes; infinity when it does not."""
    return hysteresis.deadline(watch.latch, hold_s=policy.sustained_s, forget_s=forget_s)


def restart(watch: VramWatch) -> VramWatch:
    """Forget the learned baseline: a restarted engine reserves anew. A trip stays until it clears."""
    return replace(watch, least=None, learned_at=None)


def silence(watch: VramWatch, *, forget_s: float, now: float) -> VramWatch:
    """Take in that memory was not read (`hysteresis.silence`)."""
    latch = hysteresis.silence(watch.latch, forget_s=forget_s, now=now)
    return watch if latch is watch.latch else replace(watch, latch=latch)


def _learn(watch: VramWatch, ratio: float, policy: VramPolicy, now: float) -> VramWatch:
    ends = now + policy.learn_s if watch.learned_at is None else watch.learned_at
    least = ratio if watch.least is None else min(ratio, watch.least)
    if ends == watch.learned_at and least == watch.least:
        return watch
    return replace(watch, least=least, learned_at=ends)
