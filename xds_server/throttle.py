"""When the loop may think again: at once after quiet, rarely under a storm. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MIN_GAP_S = 0.001
"""Least time between two evaluations: what arrives within it is decided together."""
DEAR_S = 0.003
"""An evaluation of this cost is followed by a pause as long as itself; a cheaper one by less."""
LONGEST_PAUSE = 3.0
"""The dearest evaluations are followed by this many times their cost: a quarter of a core at most.

Cheap evaluations come quickly one after the other, so that samples do not wait for company; dear ones
(ten thousand samples a second, thousands of instances) leave the processor to the streams.
"""


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
        pause = cost_s * min(LONGEST_PAUSE, cost_s / DEAR_S)
        gap = max(MIN_GAP_S, min(self.gap_s, pause))
        self._earliest = ended + gap
        if published:
            self._earliest = max(self._earliest, started + self.gap_s)
