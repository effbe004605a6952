"""A condition that must last before it counts, and must be gone for a while before it is over.

A missing reading is evidence of nothing, but not for ever: what was not read for as long as telemetry
may be held counts no more. Else a reader that broke would keep an instance small until somebody noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """On or off, and since when the opposite has been seen without interruption."""

    on: bool = False
    since: float | None = None
    """When the evidence for a change began; None without such evidence."""
    silent_since: float | None = None
    """Since when nothing was read while it is on; None while it is off or readings come."""


OFF = Latch()


def settled(*, on: bool) -> Latch:
    """Return a latch in a position, without evidence for the other one."""
    return Latch(on=True) if on else OFF


def step(latch: Latch, *, changing: bool, hold_s: float, now: float) -> Latch:
    """Take one reading.

    Args:
        latch: The latch so far.
        changing: Whether this reading speaks for the other position.
        hold_s: How long that must last until the latch moves.
        now: Monotonic seconds.

    Returns:
        The same object when nothing changed. A missing reading must not be passed: it says nothing.
    """
    if not changing:
        return latch if latch.since is None and latch.silent_since is None else settled(on=latch.on)
    since = now if latch.since is None else latch.since
    if now >= since + hold_s:
        return settled(on=not latch.on)
    return latch if since == latch.since else Latch(on=latch.on, since=since)


def silence(latch: Latch, *, forget_s: float, now: float) -> Latch:
    """Take in that there is no reading: evidence that was not complete is forgotten.

    Args:
        latch: The latch so far.
        forget_s: How long nothing may be read until the latch is off.
        now: Monotonic seconds.

    Returns:
        The same object when nothing changed.
    """
    if not latch.on:
        return latch if latch.since is None else OFF
    if latch.silent_since is None:
        return Latch(on=True, silent_since=now)
    return OFF if now >= latch.silent_since + forget_s else latch


def deadline(latch: Latch, *, hold_s: float, forget_s: float) -> float:
    """Return when the latch moves if readings go on as they are; infinity when it does not."""
    if latch.silent_since is not None:
        return latch.silent_since + forget_s
    return inf if latch.since is None else latch.since + hold_s
