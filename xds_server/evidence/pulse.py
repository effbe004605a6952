"""What is done once a second with what proxies and agents said, whether or not anything arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from xds_server.clock import Clock
from xds_server.core.model import InstanceId
from xds_server.core.plan import ModelPlan
from xds_server.core.sample import Sample
from xds_server.evidence.engine_trouble import AllocationFailures, restart_loops, unwell
from xds_server.evidence.intake import Intake
from xds_server.fleet import Fleet
from xds_server.observability.metrics import Reading

PULSE_S = 1.0
ALLOCATION_PULSES = 5
"""Counters of engines are compared this rarely: it walks over every instance."""


class Pulse:
    """Tells the brain what it waits for: who succeeds again, and what was asked of each class."""

    def __init__(
        self,
        *,
        intake: Intake,
        fleet: Callable[[], Fleet],
        latest: Callable[[], Mapping[InstanceId, Sample]],
        clock: Clock,
        think: Callable[[], None] = lambda: None,
    ) -> None:
        """Read from `intake` and `latest`; the fleet's plan says who is waited for.

        `think` is called when what classes asked for should move the plan, which no sample may ever do.
        """
        self._intake = intake
        self._fleet = fleet
        self._latest = latest
        self._clock = clock
        self._think = think
        self._allocation = AllocationFailures()
        self._since = clock()
        self._count = 0
        self._plans: tuple[ModelPlan, ...] = ()
        self._unwell: Iterable[InstanceId] = ()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(PULSE_S)
            self.beat()

    def beat(self) -> None:
        """Do it once."""
        now = self._clock()
        fleet = self._fleet()
        if fleet.plan is not None and fleet.plan.models is not self._plans:
            self._plans = fleet.plan.models
            self._unwell = unwell(fleet.plan)
        self._intake.vouch(self._unwell, since=self._since)
        seen = self._intake.take_classes()
        moved = [fleet.saw_requests(model, counts, now) for model, counts in seen.items()]
        if any(moved):
            self._think()
        if self._count % ALLOCATION_PULSES == 0:
            self._allocation.step(fleet.topology, self._latest(), now)
        self._since = now
        self._count += 1

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        yield from self._allocation.readings()
        yield from restart_loops(self._fleet().plan)
