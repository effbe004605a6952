"""What decides the weights of a simulated fleet: the real brain, or the baseline to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from xds_server.core.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The weights that proxies are given."""

    shares: tuple[float, ...]
    """Share of the requests per tier, in chain order; adds up to 1."""
    spill: float
    """What the first tier passes on, 0-1."""
    weights: tuple[tuple[float, ...], ...]
    """Weight per instance per tier; 0 = takes nothing."""
    ceilings: tuple[tuple[float, ...], ...]
    """Ceiling per instance per tier, 0-1."""
    levels: tuple[str, ...]
    """Level per tier."""
    next_deadline: float | None
    """When to decide again though no sample came, seconds."""


class Controller(Protocol):
    """Anything that turns samples into weights."""

    def observe(self, sample: Sample) -> None:
        """Take note of a sample."""
        ...

    def decide(self, now: float) -> Decision:
        """Return the weights at `now`."""
        ...


class StaticWeights:
    """The baseline: every instance weighs its capacity, the first tier gets everything.

    Args:
        slots: Slots per instance per tier.
    """

    def __init__(self, *, slots: tuple[tuple[float, ...], ...]) -> None:
        self._decision = Decision(
            shares=(1.0,) + (0.0,) * (len(slots) - 1),
            spill=0.0,
            weights=slots,
            ceilings=tuple((1.0,) * len(tier) for tier in slots),
            levels=("healthy",) * len(slots),
            next_deadline=None,
        )

    def observe(self, sample: Sample) -> None:
        """Ignore the sample."""

    def decide(self, now: float) -> Decision:
        """Return the same weights as always."""
        del now
        return self._decision
