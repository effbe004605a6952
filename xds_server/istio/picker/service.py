"""The picker as a part of the process: plans in, gateways' questions answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from xds_server import logs
from xds_server.config.addresses import format_address, parse_address
from xds_server.config.istio_schema import EndpointPickerSection
from xds_server.core.model import ModelName
from xds_server.core.plan import Plan
from xds_server.istio.picker.decide import Desk, PickerOptions
from xds_server.istio.picker.server import PickerServer
from xds_server.istio.way import Around
from xds_server.observability.metrics import Reading


class EndpointPicker:
    """Serves gateways for as long as the process runs.

    It is ready once the plan is authoritative. Who asks before gets what the plan says so far: weights by capacity
    are better than a 503.
    """

    def __init__(self, around: Around, section: EndpointPickerSection) -> None:
        self._around = around
        self._section = section
        self.desk = Desk(
            options=options_of(section),
            chance=random.random,
            tally=around.tally,
            unreadable=lambda: around.loop.fleet.policy.rewrite.unreadable,
        )
        self.server = PickerServer(self.desk)
        self._planned = asyncio.Event()
        self._log = logs.get("picker")
        around.loop.subscribe(self._heard)

    def listen(self) -> None:
        """Take the port."""
        host, port = parse_address(self._section.listen, lowest_port=0)
        got = self.server.listen(host, port)
        self._log.info(logs.PICKER_LISTENING, address=format_address(host, got), port=got)

    async def run(self) -> None:
        """Serve until cancelled; then let answers that are under way end."""
        if self.server.port is None:
            self.listen()
        await self.server.start()
        try:
            while True:
                await self._planned.wait()
                self._planned.clear()
                self.server.set_ready(ready=self._around.loop.is_warm)
        finally:
            self.server.set_ready(ready=False)
            await asyncio.sleep(self._section.stop_delay_s)
            await self.server.stop(self._section.stop_grace_s)

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        yield "fleet_picker_streams", (), float(self.server.streams)

    def _heard(self, plan: Plan) -> None:
        self.desk.heard(self._around.loop.fleet.topology, plan)
        self._planned.set()


def options_of(section: EndpointPickerSection) -> PickerOptions:
    """Return what the configuration says."""
    return PickerOptions(
        models=tuple(ModelName(each) for each in section.models),
        retries=section.retries,
        max_body_bytes=section.max_body_bytes,
        retry_after_s=section.retry_after_s,
        obeys_conformance=section.conformance,
    )
