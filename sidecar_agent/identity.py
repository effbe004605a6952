"""Who this agent is on the wire (pure: everything comes in as an argument)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """An instance this agent owns, as it is announced."""

    name: str
    address: str = ""
    model: str = ""
    tier: str = ""
    capacity: float | None = None
    engine: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One run of one agent."""

    agent: str
    epoch: int
    """Unix milliseconds at start: a later run is larger, so that a dead run's stream is refused."""
    instances: tuple[Owned, ...] = ()


def agent_name(configured: str, environment: Mapping[str, str], hostname: str) -> str:
    """Return the agent's name: configuration, then NODE_NAME, then the host's name.

    In a container the host's name is the pod's, hence NODE_NAME (the downward API) comes first.
    """
    return configured or environment.get("NODE_NAME", "").strip() or hostname


def config_hash(effective: str) -> str:
    """Return a short hash of the effective configuration, for people to compare."""
    return hashlib.sha256(effective.encode()).hexdigest()[:12]
