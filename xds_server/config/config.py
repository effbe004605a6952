"""What a configuration file says, once it is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xds_server.config.problems import Problem
from xds_server.core.model import Topology
from xds_server.core.policy import Policy

if TYPE_CHECKING:
    from xds_server.config.istio_schema import IstioSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One valid configuration file."""

    topology: Topology
    policy: Policy
    server: dict[str, Any]
    """The `server` section as far as it was written; see `settings.py`."""
    istio: IstioSection | None = None
    """The `istio` section as it was written; `xds_server.istio.mesh` makes values of it."""
    text: str = field(default="", repr=False, compare=False)
    """The file as it was read."""
    doubts: tuple[Problem, ...] = field(default=(), compare=False)
    """What works and is hardly meant."""

    @property
    def discovers(self) -> bool:
        """Whether agents may register instances."""
        return any(tier.discovers for model in self.topology.models for tier in model.tiers)

    @property
    def at_start(self) -> tuple[Any, ...]:
        """What is read once, when the process starts: the settings, and which ways lead to an Istio mesh."""
        return self.server, None if self.istio is None else self.istio.routes()
