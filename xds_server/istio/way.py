"""What a way to the mesh is given, and what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from xds_server.config.config import Config
from xds_server.istio.mesh import Mesh
from xds_server.istio.publications import Publications
from xds_server.loop.control_loop import ControlLoop
from xds_server.observability.history import History
from xds_server.observability.metrics import Reading, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What of the process a way may use."""

    config: Callable[[], Config]
    """The configuration in use; another one after a reload."""
    loop: ControlLoop
    """Tells plans to whom `subscribe`s; they are authoritative once `is_warm`."""
    tally: Tally
    history: History
    mesh: Callable[[], Mesh]
    """What of ours is which host of the mesh now (`MeshNow`)."""
    published: Publications = field(default_factory=Publications)
    """What ways tell the mesh, for who checks whether it arrives."""


class Way(Protocol):
    """One way to the mesh."""

    def listen(self) -> None:
        """Take the port, if it has one. Called once, before anything runs.

        Raises:
            StartError: It cannot be had.
        """
        ...

    async def run(self) -> None:
        """Work until cancelled; called again if it raises."""
        ...

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        ...
