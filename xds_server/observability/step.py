"""One turn of the control loop, as it is told to who wants to know how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from xds_server.core.plan import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From what arrived to what was published. Times are monotonic seconds on the loop's clock."""

    started: float
    decided: float
    published: float
    """When the last resource was handed to the proxies' streams."""
    inputs: int
    """Samples, drains and evidence that were taken in."""
    oldest_s: float | None
    """Age of the oldest sample among them; None when there was none."""
    may_wait: bool
    """False for a fault, a drain, or what somebody forced."""
    events: tuple[Event, ...]
    """What was decided."""
