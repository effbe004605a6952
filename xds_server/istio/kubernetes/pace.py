"""When an object may be written next: one clock per object. Pure but for its own fields."""

from __future__ import annotations

from xds_server.istio.kubernetes.errors import Cause

GAP_MAX_S = 60.0
"""Against somebody who takes every write back, and after failures that only a person can end."""
CALM_S = 60.0
"""Without being taken back for so long, writes come at their ordinary pace again."""
FIRST_RETRY_S = 1.0
NEEDS_A_PERSON = frozenset({Cause.FORBIDDEN, Cause.UNAUTHORIZED, Cause.INVALID, Cause.NOT_FOUND})
PERSON_RETRY_S = 15.0
"""A role that was mended is noticed after this long."""
CONFLICTS_AT_ONCE = 3
"""After a conflict the object is read and written again at once, this many times in a row."""


class Pace:
    """Decides how long to wait. Times are monotonic seconds."""

    def __init__(self, gap_s: float) -> None:
        self.due = float("-inf")
        """Nothing may be written before."""
        self.gap_s = gap_s
        """Now; it grows while somebody takes every write back."""
        self._base_s = gap_s
        self._failures = 0
        self._conflicts = 0
        self._taken_back_at = float("-inf")

    def written(self, now: float) -> None:
        """Note a write that was accepted."""
        if not self._is_recent(now):
            self.gap_s = self._base_s
        self.due = now + self.gap_s
        self._failures = self._conflicts = 0

    def settled(self) -> None:
        """Note that nothing had to be written."""
        self._failures = self._conflicts = 0

    def taken_back(self, now: float) -> None:
        """Note that somebody undid our last write: the next one comes later each time, and never stops."""
        is_fight = self._is_recent(now)
        self._taken_back_at = now
        if is_fight:
            self.gap_s = min(GAP_MAX_S, 2 * self.gap_s)
            self.due = max(self.due, now + self.gap_s)

    def _is_recent(self, now: float) -> bool:
        """Whether the last write that was taken back is not long ago, as seen from the gap."""
        return now - self._taken_back_at <= CALM_S + 2 * self.gap_s

    @property
    def is_fight(self) -> bool:
        """Whether writes are slowed down because they are taken back."""
        return self.gap_s > self._base_s

    @property
    def may_be_stale(self) -> bool:
        """Whether it is still likely that reading again mends what the server refused."""
        return self._conflicts < CONFLICTS_AT_ONCE

    def conflicted(self, now: float) -> None:
        """Note a 409: read again and try, at once at first."""
        self._conflicts += 1
        if self._conflicts > CONFLICTS_AT_ONCE:
            self.due = now + self.gap_s

    def failed(self, now: float, cause: Cause, retry_after_s: float | None) -> None:
        """Note a failure; the next try comes later each time, or when the server said."""
        self._failures += 1
        wait_s = min(GAP_MAX_S, FIRST_RETRY_S * 2 ** min(10, self._failures - 1))
        if cause in NEEDS_A_PERSON:
            wait_s = max(wait_s, PERSON_RETRY_S)
        self.due = now + max(wait_s, retry_after_s or 0.0)
