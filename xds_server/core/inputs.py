"""What may reach the brain besides the passing of time."""

from __future__ import annotations

from dataclasses import dataclass

from xds_server.core.model import InstanceId, ModelName, TierName
from xds_server.core.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator drains an instance, or takes the drain back."""

    instance: InstanceId
    draining: bool
    who: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the proxies saw of the requests to an instance."""

    instance: InstanceId
    observed_at: float
    """Monotonic seconds on the control plane's clock: when the last entry arrived."""
    cause: str
    """Why it is to be taken out (`core/evidence.py`); empty: its requests succeed."""
    detail: str = ""
    """Kinds and numbers, for a person."""

    @property
    def is_failing(self) -> bool:
        """Whether it speaks against the instance."""
        return bool(self.cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """An operator gives one tier all requests of its model for a time, or takes that back."""

    model: ModelName
    tier: TierName | None
    """None = take it back."""
    who: str
    why: str = ""
    until: float = 0.0
    """Monotonic seconds at which it ends by itself."""
    until_unix_s: float = 0.0
    """The same moment by the wall clock, for people."""


Input = Sample | Drain | Evidence | Force
