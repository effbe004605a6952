"""The config source as a part of the process: plans in, objects of Istio out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from xds_server.config.istio_schema import ConfigSourceSection
from xds_server.core.plan import Plan
from xds_server.istio.way import Around
from xds_server.istio.weights import ModelWeights, weigh
from xds_server.observability.metrics import Reading


class ConfigSource:
    """Keeps what istiod is told up to date."""

    def __init__(self, around: Around, section: ConfigSourceSection) -> None:
        self.weights: tuple[ModelWeights, ...] = ()
        """Of the newest plan."""
        self._around = around
        self._section = section
        around.loop.subscribe(self._heard)

    def listen(self) -> None:
        """Take the port."""

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        yield from ()

    def _heard(self, plan: Plan) -> None:
        mesh = self._around.mesh()
        plans = {each.name: each for each in plan.models}
        self.weights = tuple(
            weigh(plans[each.model], each) for each in mesh.models if each.model in plans
        )
