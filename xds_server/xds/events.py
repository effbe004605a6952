"""What a session reports: facts for logs, metrics and the status page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acked:
    """A response was accepted."""

    type_url: str
    version: str
    lag_s: float


@dataclass(frozen=True, slots=True)
class Nacked:
    """A response was refused."""

    type_url: str
    version: str
    error: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ignored:
    """A request was not acted upon."""

    type_url: str
    reason: str


Event = Acked | Nacked | Ignored
