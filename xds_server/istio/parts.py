"""The ways to an Istio mesh that are configured, as parts of the process.

A way is imported when its subsection is there: who uses no Istio pays for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from xds_server.config.config import Config
from xds_server.config.istio_schema import IstioSection
from xds_server.istio.mesh import MeshNow
from xds_server.istio.way import Around, Way
from xds_server.listening import StartError
from xds_server.loop.control_loop import ControlLoop
from xds_server.observability.history import History
from xds_server.observability.metrics import Reading, Tally


class IstioParts:
    """All ways that are configured at the start; other ones need a restart."""

    def __init__(
        self,
        config: Callable[[], Config],
        loop: ControlLoop,
        tally: Tally,
        history: History,
    ) -> None:
        around = Around(
            config=config,
            loop=loop,
            tally=tally,
            history=history,
            mesh=MeshNow(_lasting(lambda: config().istio), lambda: loop.fleet.topology),
        )
        section = config().istio
        self.ways: dict[str, Way] = {} if section is None else dict(_ways(section, around))

    def listen(self) -> None:
        """Take the ports.

        Raises:
            StartError: One of them cannot be had.
        """
        for way in self.ways.values():
            way.listen()

    def tasks(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return what is to run, by name."""
        return {f"istio-{name}": way.run for name, way in self.ways.items()}

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        for way in self.ways.values():
            yield from way.readings()


def _lasting(now: Callable[[], IstioSection | None]) -> Callable[[], IstioSection | None]:
    """Return a function that gives the last section that had models.

    Which ways run is decided at the start. A file that loses its section, or all of its models, takes effect at
    the next one: until then the ways go on, and no mesh loses its routes for an edit.
    """
    last: IstioSection | None = None

    def section() -> IstioSection | None:
        nonlocal last
        found = now()
        if found is not None and found.models:
            last = found
        return last

    return section


def _ways(section: IstioSection, around: Around) -> Iterator[tuple[str, Way]]:
    """Yield the ways by name. Imports are here: see above."""
    if section.config_source is not None:
        from xds_server.istio.mcp.source import ConfigSource  # noqa: PLC0415

        yield "config-source", ConfigSource(around, section.config_source)
    if section.endpoint_picker is not None:
        from xds_server.istio.picker.service import EndpointPicker  # noqa: PLC0415

        yield "endpoint-picker", EndpointPicker(around, section.endpoint_picker)
    if section.kubernetes is not None:
        try:
            from xds_server.istio.kubernetes.mesh_writer import MeshWriter  # noqa: PLC0415
        except ImportError as error:
            raise StartError(f"istio.kubernetes needs gpu-xds[kubernetes]: {error}") from error

        yield "kubernetes", MeshWriter(around, section.kubernetes)
    if section.probe is not None:
        from xds_server.istio.probe.probe import Probe  # noqa: PLC0415

        yield "probe", Probe(around, section.probe)
