"""When it is worth telling that istiod is lost, and that it is there again. Pure: time is an argument.

istiod ends every connection after half an hour (`keepaliveMaxServerConnectionAge` of its chart) and restarts with
every rollout; who comes back within seconds says nothing of it. Who is gone for longer, or again and again, does.
"""

from __future__ import annotations

import re
from collections import deque

TELL_S = 5.0
"""An outage that is shorter is none ..."""
AGAIN_S = 60.0
MOST_LOSSES = 3
"""... unless so many connections are lost within that time."""
MOST_REASONS = 8
"""Different ones, of one outage, that are told."""
_NUMBER = re.compile(r"\d+")


class Outage:
    """The connection to one istiod."""

    def __init__(self) -> None:
        self._since: float | None = float("-inf")
        """When it was lost; None = it is there. What was never there is told at once."""
        self._losses: deque[float] = deque(maxlen=MOST_LOSSES)
        self._told: set[str] = set()

    def lost(self, reason: str, now: float) -> bool:
        """Take a failure; return whether to tell it. A reason that differs in numbers only is told once."""
        if self._since is None:
            self._since = now
            self._losses.append(now)
        if now - self._since < TELL_S and not self._is_unsteady(now):
            return False
        kind = _NUMBER.sub("#", reason)
        if kind in self._told or len(self._told) >= MOST_REASONS:
            return False
        self._told.add(kind)
        return True

    def there(self) -> None:
        """Take note that it answers."""
        self._since = None

    def is_over(self, now: float) -> bool:
        """Return, once, that what was told is over: istiod answers, and is not lost again and again."""
        if not self._told or self._since is not None or self._is_unsteady(now):
            return False
        self._told.clear()
        return True

    def _is_unsteady(self, now: float) -> bool:
        losses = self._losses
        return len(losses) == MOST_LOSSES and now - losses[0] < AGAIN_S
