"""When the loop may think again: at once after quiet, rarely under a storm. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MIN_GAP_S = 0.001
"""Least time between two evaluations: what arrives within it is decided together."""
BUSY_SHARE = 0.25
"""The most of a core that evaluations may take while they change nothing."""


@dataclass(slots=True)
class Throttle:
    """A leading-edge throttle: an isolated change waits for nothing."""

    gap_s: float
    """Least time from one push to the next."""
    _earliest: float = float("-inf")

    @property
    def earliest(self) -> float:
        """When the next evaluation may start (monotonic seconds)."""
        return self._earliest

    def evaluated(self, *, started: float, ended: float, cost_s: float, published: bool) -> None:
        """Note an evaluation, with its publication if there was one.

        Args:
            started: When it began (monotonic seconds).
            ended: When it was over.
            cost_s: Processor time it took: on a busy machine much less than the time that passed.
            published: Whether anything was pushed.
        """
        gap = max(MIN_GAP_S, min(self.gap_s, cost_s * (1 / BUSY_SHARE - 1)))
        self._earliest = ended + gap
        if published:
            self._earliest = max(self._earliest, started + self.gap_s)
