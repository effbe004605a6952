"""Where one instance is between fault and health; `faults.py` says how it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from xds_server.core.evidence import IN_ROW, RATE
from xds_server.core.model import InstanceId
from xds_server.core.plan import FaultState
from xds_server.core.policy import RecoveryPolicy

PROXY_CAUSES = frozenset({IN_ROW, RATE})
"""Causes that only proxies saw."""
LOADING_STAGE = -1
"""The stage of an engine that loads: before the first one of its ramp."""
_RAMPING = frozenset({FaultState.WARMING, FaultState.RECOVERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Where one instance is, and what is needed to decide its next step."""

    state: FaultState
    cause: str
    """Rule that led here, e.g. `engine_down`."""
    detail: str
    since: float
    """When the state (or the stage of its ramp) began."""
    stage: int = 0
    """Index into `RecoveryPolicy.stages` while warming or recovering; -1 while loading."""
    due_at: float | None = None
    """When the running timer ends: a stage, the proof before a ramp, or the quarantine."""
    left_s: float | None = None
    """What was left of a timer that stands still."""
    hold_s: float = 0.0
    """Length of every stage of this ramp."""
    episode: int = 0
    """Ramps begun so far; seeds the jitter."""
    relapses: int = 0
    """Ramps interrupted since it was last healthy; each doubles the hold."""
    faults: tuple[float, ...] = ()
    """When the faults happened that count toward quarantine."""
    restarts: int | None = None
    """Restart counter of the last sample; None before the first."""
    agent_drains: bool = False
    operator: str | None = None
    """Who drains it, with the reason; None when no operator does."""
    served_at: float | None = None
    """When proxies last said that its requests succeed; None when that is too long ago to count."""
    seen: str = ""
    """What proxies see of an instance that the agent took out: a clause, or nothing."""

    @property
    def is_ramping(self) -> bool:
        """Whether it is on the stages (not while loading)."""
        return self.state in _RAMPING and self.stage >= 0

    @property
    def is_loading(self) -> bool:
        """Whether its engine loads and serves nothing yet."""
        return self.state is FaultState.WARMING and self.stage == LOADING_STAGE

    @property
    def is_out_by_proxies(self) -> bool:
        """Whether it is down for what proxies saw and the agent has not confirmed."""
        return self.state is FaultState.DOWN and self.cause in PROXY_CAUSES

    @property
    def is_drained(self) -> bool:
        """Whether somebody wants it empty, whatever else is wrong with it."""
        return self.agent_drains or self.operator is not None


class Context(NamedTuple):
    """What every transition needs."""

    instance: InstanceId
    policy: RecoveryPolicy
    now: float
