"""The probe as a part of the process: plans in, what sidecars are told in, doubts out."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from xds_server import logs
from xds_server.clock import Clock
from xds_server.config.istio_schema import ProbeSection
from xds_server.core.model import ModelName
from xds_server.core.plan import Plan
from xds_server.istio.mesh import Mesh
from xds_server.istio.probe.follow import Follow
from xds_server.istio.probe.outage import Outage
from xds_server.istio.probe.seen import Seen, describe, difference
from xds_server.istio.probe.stream import Configs, ProbeError, identity, watch
from xds_server.istio.way import Around
from xds_server.istio.weights import ModelWeights, weigh
from xds_server.observability.metrics import Reading

LOOK_S = 0.5
"""How often it is looked at whether weights are late."""
AGAIN_S = 1.0
AGAIN_MOST_S = 15.0
"""Least and longest time until a lost istiod is tried again."""


class Probe:
    """Watches whether the mesh follows."""

    def __init__(
        self, around: Around, section: ProbeSection, *, clock: Clock = time.monotonic
    ) -> None:
        self.is_connected = False
        """Whether sidecars' routes are known now."""
        self._around = around
        self._section = section
        self._clock = clock
        self._follows: dict[ModelName, Follow] = {}
        self._late: set[ModelName] = set()
        self._undivided: set[ModelName] = set()
        """Models whose classes share one route: there is one in a VirtualService of somebody else's."""
        self._mesh = Mesh()
        self._names: tuple[str, ...] = ()
        self._outage = Outage()
        self._changed = asyncio.Event()
        self._log = logs.get("istio-probe")
        around.loop.subscribe(self._heard)
        around.published.subscribe(self._pushed)

    def listen(self) -> None:
        """Nothing listens."""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_late(), name="istio-probe-late")
            await self._stay_connected()

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges; what nobody knows has none."""
        yield "fleet_istio_probe_connected", (), float(self.is_connected)
        now = self._clock()
        for name, follow in self._follows.items():
            age = follow.unapplied_s(now)
            if age is not None:
                yield "fleet_istio_unapplied_seconds", (name,), age

    # What is wanted.

    def _heard(self, plan: Plan) -> None:
        if not self._around.loop.is_warm:
            return
        mesh, now = self._around.mesh(), self._clock()
        plans = {each.name: each for each in plan.models}
        if mesh != self._mesh:
            self._take(mesh)
        for model in self._mesh.models:
            if model.model in plans and model.model in self._follows:
                wanted = plans[model.model]
                if model.model in self._undivided:
                    wanted = replace(wanted, classes=())
                self._follows[model.model].want(weigh(wanted, model), now)

    def _pushed(self, weights: ModelWeights) -> None:
        name, now = weights.model.model, self._clock()
        follow = self._follows.get(name)
        if follow is None:
            return
        if all(each.of is None for each in weights.routes) != (name in self._undivided):
            self._undivided ^= {name}
            follow.want(weights, now)
        follow.pushed(weights, now)

    def _take(self, mesh: Mesh) -> None:
        """Watch the hosts of a new configuration."""
        self._mesh = mesh
        watched = {
            each.model for each in mesh.models if "mesh" in each.gateways or each.is_delegate
        }
        self._follows = {name: self._follows.get(name, Follow()) for name in sorted(watched)}
        self._late &= watched
        names = route_names(self._section, mesh)
        if names != self._names:
            self._names = names
            self._changed.set()

    # What is seen.

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            while not self._names:
                self._blind()
                self._changed.clear()
                await self._changed.wait()
            self._changed.clear()
            try:
                await self._session()
            except ProbeError as error:
                failures = 1 if self.is_connected else failures + 1
                self._lost(str(error))
                longest = min(AGAIN_MOST_S, AGAIN_S * 2 ** min(failures - 1, 10))
                await asyncio.sleep(random.uniform(AGAIN_S / 2, longest))

    async def _session(self) -> None:
        """Watch until other hosts are to be watched.

        Raises:
            ProbeError: istiod is lost.
        """
        reading = asyncio.create_task(self._read(), name="istio-probe-stream")
        changed = asyncio.create_task(self._changed.wait(), name="istio-probe-changed")
        try:
            await asyncio.wait((reading, changed), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
        finally:
            for task in (reading, changed):
                task.cancel()
            await asyncio.gather(reading, changed, return_exceptions=True)

    async def _read(self) -> None:
        who = identity(self._section, self._section.namespace or self._mesh.models[0].namespace)
        async for configs in watch(self._section, who=who, names=self._names):
            self._see(configs)

    def _see(self, configs: Configs) -> None:
        now = self._clock()
        if not self.is_connected:
            self.is_connected = True
            self._outage.there()
            self._log.info(logs.MESH_WATCHED, istiod=self._section.istiod)
            self._say_if_it_is_back(now)
        for model in self._mesh.models:
            follow = self._follows.get(model.model)
            if follow is None:
                continue
            took_s = follow.look(routes_of(configs, model.host), now)
            if took_s is not None:
                self._around.tally.observe("fleet_istio_applied_seconds", took_s)

    def _blind(self) -> None:
        self.is_connected = False
        for follow in self._follows.values():
            follow.blind()

    def _lost(self, reason: str) -> None:
        self._blind()
        if self._outage.lost(reason, self._clock()):
            self._log.warning(logs.MESH_UNWATCHED, istiod=self._section.istiod, reason=reason)
            self._around.history.mesh(
                logs.MESH_UNWATCHED, f"istiod {self._section.istiod} cannot be watched: {reason}"
            )

    def _say_if_it_is_back(self, now: float) -> None:
        if self._outage.is_over(now):
            self._around.history.mesh(
                logs.MESH_WATCHED, f"istiod {self._section.istiod} is watched again."
            )

    # What is late.

    async def _look_for_late(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._clock()
            self._say_if_it_is_back(now)
            for name, follow in self._follows.items():
                self._judge(name, follow, now)

    def _judge(self, name: ModelName, follow: Follow, now: float) -> None:
        age, wanted = follow.unapplied_s(now), follow.newest
        if age is None or wanted is None:
            return
        if age >= self._section.late_s and name not in self._late:
            self._late.add(name)
            reason = difference(wanted, follow.seen) or "the mesh follows, but later and later"
            self._log.warning(
                logs.MESH_NOT_FOLLOWING, model=name, since_s=round(age, 1), reason=reason
            )
            self._around.history.mesh(
                logs.MESH_NOT_FOLLOWING,
                f"For {age:.0f} s the mesh has not followed: {reason}.",
                model=name,
                wanted=[describe(each) for each in wanted.routes],
            )
        elif age < self._section.late_s / 4 and name in self._late:
            # Not zero: while weights change all the time, some are always on their way.
            self._late.discard(name)
            self._log.info(logs.MESH_FOLLOWING, model=name)
            self._around.history.mesh(
                logs.MESH_FOLLOWING, "The mesh has what it was told again.", model=name
            )


def route_names(section: ProbeSection, mesh: Mesh) -> tuple[str, ...]:
    """Return the route configurations in which a sidecar has the models' hosts.

    They are named by the port that clients call; those of a port without a named protocol by host and port.
    """
    ports = section.ports or sorted(
        {tier.port for model in mesh.models for tier in model.tiers if tier.port is not None}
    )
    hosts = [f"{model.host}:{port}" for model in mesh.models for port in ports]
    return (*(str(port) for port in ports), *hosts)


def routes_of(configs: Configs, host: str) -> Seen | None:
    """Return the routes of a host; None where no configuration has it."""
    names: Sequence[str] = sorted(configs, key=lambda name: ":" in name)
    for name in names:
        found = configs[name].get(host)
        if found is not None:
            return found
    return None
