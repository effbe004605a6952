"""A condition that must last before it counts, and must be gone for a while before it is over."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """On or off, and since when the opposite has been seen without interruption."""

    on: bool = False
    since: float | None = None
    """When the evidence for a change began; None without such evidence."""


OFF = Latch()


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
        return latch if latch.since is None else replace(latch, since=None)
    since = now if latch.since is None else latch.since
    if now >= since + hold_s:
        return Latch(on=not latch.on)
    return latch if since == latch.since else replace(latch, since=since)


def interrupt(latch: Latch) -> Latch:
    """Forget evidence that was not complete when the readings stopped."""
    return latch if latch.since is None else replace(latch, since=None)
