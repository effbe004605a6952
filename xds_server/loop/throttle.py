"""When the loop may think and push again: at once after quiet, rarely under a storm. Pure.

Thinking and pushing wait separately: a sample is decided upon although the last push is recent, and the
newest decision goes out when its time has come.
"""

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
PUSH_COST_S = 0.0003
"""Twice what a response and its ACK cost (benchmarks/results/fanout.json): under a storm of changes pushes
take half a core, however many proxies there are. A thousand that connect while agents do would otherwise
be pushed to faster than they can be configured."""


@dataclass(slots=True)
class Throttle:
    """A leading-edge throttle: an isolated change waits for nothing."""

    gap_s: float
    """Least time from one push to the next."""
    _earliest: float = float("-inf")
    _push_earliest: float = float("-inf")

    @property
    def earliest(self) -> float:
        """When the next evaluation may start (monotonic seconds)."""
        return self._earliest

    @property
    def push_earliest(self) -> float:
        """When the next push may leave (monotonic seconds)."""
        return self._push_earliest

    def evaluated(self, *, ended: float, cost_s: float) -> None:
        """Note an evaluation.

        Args:
            ended: When it was over (monotonic seconds).
            cost_s: Processor time it took: on a busy machine much less than the time that passed.
        """
        pause = cost_s * min(LONGEST_PAUSE, cost_s / DEAR_S)
        self._earliest = ended + max(MIN_GAP_S, min(self.gap_s, pause))

    def pushed(self, *, at: float, proxies: int) -> None:
        """Note a push.

        Args:
            at: When it began (monotonic seconds).
            proxies: How many streams it goes to.
        """
        self._push_earliest = at + max(self.gap_s, PUSH_COST_S * proxies)
