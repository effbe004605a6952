"""The state of the running play: what has been said, sent and seen so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from demo.outcome import Death, Outcome, Verdict
from demo.play import Act
from demo.report import tier_of
from demo.watch import Watch

RECENT_S = 2.0
"""The clients' figures in the view are those of this long."""


@dataclass(slots=True)
class Scene:
    """Everything that the view shows and the report sums up."""

    watch: Watch
    tiers: Mapping[str, str]
    """Tier of each served model."""
    started_s: float = field(default_factory=time.monotonic)
    act: Act | None = None
    act_started_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=7))
    """The newest things that happened, with their time."""
    unread: deque[str] = field(default_factory=deque)
    """Lines that a plain view has not printed yet."""

    @property
    def elapsed_s(self) -> float:
        """Time since the curtain rose."""
        return time.monotonic() - self.started_s

    def say(self, text: str) -> None:
        """Add a line to the timeline."""
        line = f"{self.elapsed_s:5.1f} s  {text}"
        self.lines.append(line)
        self.unread.append(line)

    def record(self, outcome: Outcome) -> None:
        """Take in what a client got."""
        self.outcomes.append(outcome)

    def recent(self) -> list[Outcome]:
        """Return what clients got lately."""
        since = time.monotonic() - RECENT_S
        found = []
        # Appended in the order of their ends: walk back until they are too old.
        for outcome in reversed(self.outcomes):
            if outcome.ended_s < since:
                break
            found.append(outcome)
        return found

    def count(self, verdict: Verdict) -> int:
        """Count verdicts over the whole play."""
        # Only broken answers need a closer look, and they are few.
        return sum(
            each.verdict(self.deaths) is verdict for each in self.outcomes if not each.is_complete
        )

    def shares(self, outcomes: list[Outcome]) -> dict[str, float]:
        """Return the share of answers by tier."""
        answered = [tier_of(each, self.tiers) for each in outcomes if each.status == 200]
        return {tier: answered.count(tier) / len(answered) for tier in set(answered)}
