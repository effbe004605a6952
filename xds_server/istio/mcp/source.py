"""The config source as a part of the process: plans in, objects of Istio out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from xds_server import logs
from xds_server.clock import Clock
from xds_server.config.addresses import format_address, parse_address
from xds_server.config.istio_schema import ConfigSourceSection
from xds_server.config.tls import Tls
from xds_server.core.model import Topology
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.istio.mcp.build import drafts
from xds_server.istio.mcp.catalog import (
    Catalog,
    Key,
    Labels,
    MeshObject,
    finished,
    next_step,
    title,
)
from xds_server.istio.mcp.judge import judge, stranded
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mcp.server import McpServer
from xds_server.istio.mcp.story import Story
from xds_server.istio.mesh import Mesh
from xds_server.istio.way import Around
from xds_server.istio.weights import ModelWeights, weigh
from xds_server.observability.metrics import Reading

LABELS: Labels = (("app.kubernetes.io/managed-by", "gpu-xds"),)
REVISION_LABEL = "istio.io/rev"
STOP_GRACE_S = 0.5
RETRY_S = 1.0
"""After an exception the objects are made anew this much later, even if nothing is heard."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A plan with what it was made for."""

    plan: Plan
    mesh: Mesh
    topology: Topology
    policy: Policy


class ConfigSource:
    """Keeps what istiods are told up to date.

    What they are told changes at most `changes_per_second` times a second: istiod waits for 100 ms of quiet before
    it tells its proxies anything, for up to 10 s.
    """

    def __init__(
        self, around: Around, section: ConfigSourceSection, clock: Clock = time.monotonic
    ) -> None:
        self.server = McpServer(tally=around.tally, history=around.history, clock=clock)
        self._around = around
        self._section = section
        self._clock = clock
        self._gap_s = 1 / section.changes_per_second
        revision = section.revision
        self._labels = LABELS if revision is None else (*LABELS, (REVISION_LABEL, revision))
        self._heard: Heard | None = None
        self._refused: dict[Key, str] = {}
        self._told: dict[str, ModelWeights] = {}
        self._story = Story(around.history, clock)
        self._wake = asyncio.Event()
        self._next_at = float("-inf")
        self._log = logs.get("config-source")
        around.loop.subscribe(self._hear)

    def listen(self) -> None:
        """Take the port.

        Raises:
            StartError: It cannot be had, or the certificate not be used.
        """
        section = self._section
        tls = None
        if section.certificate_file is not None and section.key_file is not None:
            tls = Tls(cert=Path(section.certificate_file), key=Path(section.key_file))
        host, port = parse_address(section.listen, lowest_port=0)
        got = self.server.listen(host, port, tls)
        self._log.info(
            logs.CONFIG_SOURCE_LISTENING,
            address=format_address(host, got),
            port=got,
            tls=tls is not None,
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        if self.server.port is None:
            self.listen()
        await self.server.start()
        try:
            while True:
                await self._wait()
                self._try_step()
        finally:
            await self.server.stop(STOP_GRACE_S)

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        yield "fleet_istio_streams", (), float(len(self.server.streams))
        yield "fleet_istio_objects_held_back", (), float(len(self._refused))
        catalog = self.server.catalog
        if catalog is not None:
            for kind in Kind:
                yield "fleet_istio_objects", (kind.value,), float(len(catalog.of_kind(kind)))

    def _hear(self, plan: Plan) -> None:
        before = self._heard
        fleet = self._around.loop.fleet
        now = Heard(plan, self._around.mesh(), fleet.topology, fleet.policy)
        if self.server.catalog is not None and before is not None and _is_same(before, now):
            return
        self._heard = now
        self._wake.set()

    async def _wait(self) -> None:
        """Sleep until something was heard, and a change may leave; write held rows meanwhile."""
        while not self._wake.is_set():
            try:
                async with asyncio.timeout(self._story.due_in_s()):
                    await self._wake.wait()
            except TimeoutError:
                self._story.flush()
        wait_s = self._next_at - self._clock()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        self._wake.clear()

    def _try_step(self) -> None:
        try:
            self._step()
        except Exception:  # noqa: BLE001 - what istiods have stays, and is served on
            self._around.tally.add("fleet_control_loop_errors_total", "config-source")
            self._log.exception(logs.PUBLISH_FAILED, again_in_s=RETRY_S)
            self._next_at = self._clock() + RETRY_S
            self._wake.set()

    def _step(self) -> None:
        """Publish what is next, if anything is."""
        heard = self._heard
        if heard is None or not self._around.loop.is_warm:
            return
        plans = {each.name: each for each in heard.plan.models}
        if any(each.model not in plans for each in heard.mesh.models):
            return  # Between two topologies: the next plan has them all.
        weights: dict[str, ModelWeights] = {
            each.model: weigh(plans[each.model], each) for each in heard.mesh.models
        }
        wanted = self._wanted(heard, weights)
        published = self.server.catalog
        step = next_step(published, wanted)
        if published is not None and step.is_same(published):
            return
        self.server.publish(step)
        self._next_at = self._clock() + self._gap_s
        self._around.tally.add("fleet_istio_changes_total")
        self._story.published(published, step, weights)
        if step.is_same(wanted):
            self._tell(step, weights)
        else:
            self._wake.set()

    def _wanted(self, heard: Heard, weights: dict[str, ModelWeights]) -> Catalog:
        """Return all objects; of one that istiod would not take, the last that it did."""
        made = drafts(
            weights=list(weights.values()),
            plans={each.name: each for each in heard.plan.models},
            topology=heard.topology,
            policy=heard.policy,
        )
        published = self.server.catalog
        last: dict[Key, MeshObject] = {} if published is None else dict(published.objects)
        objects = {each.key: finished(each, self._labels) for each in made}
        good = {key for key, each in objects.items() if key in last and last[key].body == each.body}
        refused: dict[Key, str] = {}
        for each in judge(made, good):
            refused.setdefault(each.key, each.text)
        for each in stranded(made, refused.keys() - last.keys()):
            refused.setdefault(each.key, each.text)
        self._say_refused(refused, last)
        for key in refused:
            del objects[key]
            if key in last:
                objects[key] = last[key]
        return Catalog.of(objects.values())

    def _say_refused(self, refused: dict[Key, str], last: Collection[Key]) -> None:
        before, self._refused = self._refused, refused
        for key, text in refused.items():
            if before.get(key) != text:
                self._around.tally.add("fleet_istio_objects_refused_total", key[0])
                self._log.error(logs.MESH_OBJECT_REFUSED, object=title(key), reason=text)
                kept = "The last good one is kept" if key in last else "It is not published"
                self._around.history.mesh(
                    logs.MESH_OBJECT_REFUSED, f"{title(key)}: {text}. {kept}."
                )
        for key in before.keys() - refused.keys():
            self._log.info(logs.MESH_OBJECT_MENDED, object=title(key))
            self._around.history.mesh(logs.MESH_OBJECT_MENDED, f"{title(key)} is good again.")

    def _tell(self, step: Catalog, weights: dict[str, ModelWeights]) -> None:
        """Tell who checks whether it arrives what the mesh was told of each model."""
        for name, each in weights.items():
            key = (Kind.VIRTUAL_SERVICE, f"{each.model.namespace}/{each.model.name}")
            if key in step.objects and key not in self._refused and self._told.get(name) != each:
                self._told[name] = each
                self._around.published.tell(each)


def _is_same(before: Heard, now: Heard) -> bool:
    return (
        before.plan.models is now.plan.models
        and before.topology is now.topology
        and before.policy is now.policy
        and before.mesh == now.mesh
    )
