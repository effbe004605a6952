"""The process: settings and configuration become running parts. The only place that knows them all."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute

from fleet_notify import ServiceManager
from xds_server import __version__, logs
from xds_server.admin import consequences
from xds_server.admin.access import Access
from xds_server.admin.history_pages import HistoryPages
from xds_server.admin.live_page import LivePage, live_facts
from xds_server.admin.operator_pages import OperatorPages
from xds_server.admin.server import AdminServer, Inside, UnknownInstanceError
from xds_server.admin.status import describe_fleet, gauges_of_fleet, gauges_of_proxies
from xds_server.config.addresses import format_address
from xds_server.config.config import Config
from xds_server.config.settings import Settings
from xds_server.core.inputs import Drain
from xds_server.core.model import InstanceId
from xds_server.core.policy import EvidencePolicy
from xds_server.evidence.intake import Intake
from xds_server.evidence.load_reports import LoadReports
from xds_server.evidence.page import describe_evidence
from xds_server.evidence.pulse import Pulse
from xds_server.evidence.server import EVIDENCE_SERVICES, EvidenceServer
from xds_server.fleet import Fleet
from xds_server.ingest.registry import Registry
from xds_server.ingest.server import SERVICE, TelemetryServer
from xds_server.istio.builders import builders
from xds_server.istio.parts import IstioParts
from xds_server.keeping import keep
from xds_server.listening import StartError, bound, listen_for_xds
from xds_server.loop.control_loop import ControlLoop
from xds_server.loop.limit_divider import LimitDivider
from xds_server.loop.state_file import StateFile
from xds_server.loop.state_keeper import StateKeeper
from xds_server.loop.topology_switch import TopologySwitch
from xds_server.observability.history import History, config_version
from xds_server.observability.metrics import Exposition, Reading, Tally
from xds_server.observability.proxy_history import ProxyHistory
from xds_server.observability.tracing import Tracing, TracingUnavailableError
from xds_server.observability.xds_observer import XdsObserver
from xds_server.recording.page import RecordingPage
from xds_server.recording.recorder import Recorder
from xds_server.registered import with_registered
from xds_server.resources.capability import Capability
from xds_server.resources.names import cluster_name
from xds_server.resources.snapshot import Snapshot
from xds_server.store.row import Kind, Query, Row
from xds_server.store.store import EventStore, Retention, StoreError
from xds_server.warm_up import WarmUp
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.health import Health, add_health_and_reflection
from xds_server.xds.server import SERVICE_NAMES, XdsServer
from xds_server.xds.transport import make_server, tune_gc

EXPIRY_S = 10.0
"""How often registered instances without an owner are looked for."""
STOP_GRACE_S = 0.5
"""How long streams may take to end; proxies reconnect and keep what they have meanwhile."""
SERVED = (*SERVICE_NAMES, SERVICE, *EVIDENCE_SERVICES)
"""Full names of the gRPC services."""


class App:
    """One control plane."""

    def __init__(self, *, path: Path, config: Config, settings: Settings) -> None:
        clock = time.monotonic
        self.settings = settings
        self.tally = Tally()
        self._path = path
        self._clock = clock
        self._log = logs.get("server")
        self._manager = ServiceManager.of_environment()
        self._stop = asyncio.Event()
        self._wanted: asyncio.Queue[Capability] = asyncio.Queue()
        self.registry = Registry(config.topology)
        self.cache = SnapshotCache()
        retention = Retention(keep_s=settings.store_keep_s, max_bytes=settings.store_max_bytes)
        self.store = EventStore(settings.store_file, retention)
        self.page = LivePage(
            plan=lambda: self.loop.fleet.plan,
            latest=lambda: self.loop.latest,
            proxies=lambda: self.xds.status(),  # noqa: PLW0108 - it is made below
            facts=self._facts,
            is_over=self._stop.is_set,
            clock=clock,
        )
        self.history = History(self._happened, topology=lambda: self.loop.fleet.topology)
        counting = XdsObserver(self.tally, self._wanted.put_nowait, clock)
        observer = ProxyHistory(counting, self.history)
        self.xds = XdsServer(self.cache, observer=observer)
        self.state = StateKeeper(StateFile(settings.state_dir), self.registry, self.tally, clock)
        self.state.read()
        topology = with_registered(config.topology, self.registry.registered())
        fleet = Fleet(topology, config.policy, clock())
        self._is_restored = self.state.restore(fleet)
        self.loop = ControlLoop(
            fleet=fleet,
            make_builder=builders(lambda: self.topology.config, lambda: self.loop.fleet.topology),
            publish=self._publish,
            clock=clock,
            tally=self.tally,
            push_gap_s=settings.push_gap_s,
            proxies=lambda: self.xds.stream_count,
            capabilities=(Capability.COMPOSITE,),
        )
        self.loop.on_event = self.history.decided
        self.loop.subscribe(self.history.planned)
        self._tracing = self._trace(counting)
        self.divider = LimitDivider(
            cache=self.cache,
            proxies=self.xds.proxies,
            shared=self.xds.shared,
            accepted=self.xds.accepted,
            policy=lambda: self.loop.fleet.policy.admission,
            clock=clock,
            demand=lambda: self.evidence.demand.rates(clock()),
            adopted=self.state.read_parts(),
            divided=self.state.changed.set,
        )
        self.state.parts = lambda: self.divider.parts
        self.xds.on_proxies = self.divider.changed.set
        self.telemetry = TelemetryServer(
            registry=self.registry,
            offer=self.loop.offer,
            registered=self._registered,
            policy=config.policy.telemetry,
            clock=clock,
            tally=self.tally,
            token=settings.agents_token,
        )
        self.loop.on_published = self.telemetry.drained
        self.intake = Intake(
            fleet=lambda: self.loop.fleet, offer=self.loop.hear, clock=clock, tally=self.tally
        )
        self.intake.reports = LoadReports(
            latest=lambda name: self.loop.latest.get(name),  # noqa: PLW0108 - it is replaced
            offer=self.loop.offer,
            tell=self.loop.tell,
            policy=lambda: self.loop.fleet.policy.telemetry,
            tally=self.tally,
        )
        self.pulse = Pulse(
            intake=self.intake,
            fleet=lambda: self.loop.fleet,
            latest=lambda: self.loop.latest,
            clock=clock,
            think=self.loop.force,
        )
        self.evidence = EvidenceServer(
            intake=self.intake,
            policy=self._evidence_policy,
            clusters=self._clusters,
            is_known=self.xds.knows,
            clock=clock,
            tally=self.tally,
        )
        self.state.source = self.loop
        self.topology = TopologySwitch(
            path=path,
            config=config,
            settings=settings,
            loop=self.loop,
            registry=self.registry,
            telemetry=self.telemetry,
            clock=clock,
            tally=self.tally,
            switched=self.state.changed.set,
        )
        self.istio = IstioParts(lambda: self.topology.config, self.loop, self.tally, self.history)
        self.topology.on_reloaded = self._reloaded
        self.topology.on_refused = self.history.refused
        self.recorder = Recorder(
            fleet=lambda: self.loop.fleet,
            clock=clock,
            config_version=lambda: config_version(self.topology.config.text),
        )
        self.warm_up = WarmUp(self.loop, self.topology, self.history, clock, settings.grace_s)
        self.access = Access.of(settings)
        self.admin = AdminServer(self._inside(), settings.admin_tls)
        self._health: Health | None = None
        self.xds_port: int | None = None
        """Where proxies and agents connect; None before it is listened on."""

    def stop(self) -> None:
        """Ask the process to end; what is published stays with the proxies."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            StartError: An address cannot be listened on.
        """
        host, port = self.settings.admin_host, self.settings.admin_port
        listening = bound(host, port, purpose="admin", flag="--admin-listen")
        listening.listen(128)
        listening.setblocking(False)
        await asyncio.to_thread(self._begin_history)
        try:
            with self._signals():
                await self._run(listening)
        finally:
            listening.close()
            self.history.process("server_stopped")
            await asyncio.to_thread(self.store.close)
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    async def _run(self, listening: socket.socket) -> None:
        server = make_server()
        xds_port = listen_for_xds(
            server, self.settings
        )  # First: a port in use is told before anything slow.
        self.istio.listen()
        await self.loop.prepare()
        self.loop.step()
        if self._is_restored:
            self.warm_up.end("restored")
            self.loop.step()
        self._health = self.warm_up.health = await self._add_services(server)
        await server.start()
        self.xds_port = xds_port
        self._say_started(xds_port, listening.getsockname()[1])
        self._manager.ready(
            f"serving {self._path} on {format_address(self.settings.xds_host, xds_port)}"
        )
        tune_gc()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(keep(name, part, self._clock, self.tally), name=name)
                    for name, part in self._parts().items()
                ]
                tasks.append(group.create_task(self._manager.beat(), name="watchdog"))
                admin = group.create_task(self.admin.serve_on(listening), name="admin")
                await self._stop.wait()
                self._manager.stopping()
                self._log.info(logs.SERVER_STOPPING)
                for task in tasks:
                    task.cancel()
                self.recorder.is_ending.set()
                self.admin.should_exit = True
                await self.state.write()
                await self._health.set(serving=False)
                await server.stop(grace=STOP_GRACE_S)
                await self._streams_over()
                await admin
        finally:
            await server.stop(grace=None)
        self._log.info(logs.SERVER_STOPPED)

    def _trace(self, observer: XdsObserver) -> Tracing | None:
        if self.settings.traces_url is None:
            return None
        try:
            tracing = Tracing(self.settings.traces_url, self._clock)
        except TracingUnavailableError as error:
            raise StartError(str(error)) from error
        self.loop.on_step = tracing.step
        observer.on_accepted = tracing.accepted
        return tracing

    async def _streams_over(self) -> None:
        """Let the handlers of cut streams end before the event loop does."""
        end = self._clock() + STOP_GRACE_S
        while self._has_streams() and self._clock() < end:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    def _has_streams(self) -> bool:
        return bool(self.telemetry.streams or self.xds.status() or self.evidence.streams)

    def _parts(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {
            "loop": self.loop.run,
            "warm-up": self.warm_up.wait,
            "config-watch": self.topology.watch,
            "config-reload": self.topology.follow_file,
            "registrations": self.topology.follow_agents,
            "capabilities": self._add_capabilities,
            "limits": self.divider.run,
            "expiry": self._expire,
            "state": self.state.keep,
            "pulse": self.pulse.run,
            "history": self.history.keep,
            **self.istio.tasks(),
        }

    async def _add_services(self, server: Any) -> Health:
        server.add_generic_rpc_handlers(
            (*self.xds.handlers(), self.telemetry.handlers(), *self.evidence.handlers())
        )
        health = await add_health_and_reflection(server, SERVED)
        await health.set(serving=self.loop.is_warm)
        return health

    def _say_started(self, xds_port: int, admin_port: int) -> None:
        self.topology.say_doubts()
        self._log.info(
            logs.SERVER_STARTED,
            version=__version__,
            config=str(self._path),
            xds=format_address(self.settings.xds_host, xds_port),
            xds_port=xds_port,
            admin=format_address(self.settings.admin_host, admin_port),
            admin_port=admin_port,
            restored=self._is_restored,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGTERM: self._stop.set,
            signal.SIGINT: self._stop.set,
            signal.SIGHUP: self.topology.reload.set,
        }
        for number, action in actions.items():
            loop.add_signal_handler(number, action)
        try:
            yield
        finally:
            for number in actions:
                loop.remove_signal_handler(number)

    # What changes while running.

    async def _add_capabilities(self) -> None:
        while True:
            capability = await self._wanted.get()
            try:
                await self.loop.add_capability(capability)
            except Exception:
                # A proxy asks once: what is forgotten here it would wait for in vain.
                self._wanted.put_nowait(capability)
                raise

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            before = self.registry.revision
            self.registry.expire(self._clock())
            if self.registry.revision != before:
                self._registered()

    def _registered(self) -> None:
        self.topology.registered.set()

    def _publish(self, capability: Capability, snapshot: Snapshot) -> None:
        self.cache.publish(capability, snapshot)
        self.state.changed.set()

    # What proxies report.

    def _evidence_policy(self) -> EvidencePolicy:
        return self.loop.fleet.policy.evidence

    def _clusters(self) -> frozenset[str]:
        return frozenset(
            cluster_name(model.name, tier.name)
            for model in self.loop.fleet.topology.models
            for tier in model.tiers
        )

    # The history.

    def _begin_history(self) -> None:
        """Say that the process began, and whether the one before said that it ended."""
        with contextlib.suppress(StoreError):
            last = self.store.read(Query(kinds=(Kind.PROCESS,), limit=1))
            if last and last[0].name != "server_stopped":
                text = "The one before was killed or crashed: it never said that it ends."
                self.history.process("server_was_killed", text)
        self.history.process("server_started", version=__version__, config=str(self._path))
        self.history.configured(self.topology.config.text, name="config_loaded")
        self.store.start()

    def _happened(self, row: Row) -> None:
        self.store.add(row)
        self.page.happened(row)

    def _pages_of_the_past(self) -> list[BaseRoute]:
        history = HistoryPages(self.store, lambda: self.loop.fleet.topology)
        operators = OperatorPages(
            loop=self.loop,
            history=self.history,
            clock=self._clock,
            config=lambda: self.topology.config,
            registered=self.registry.registered,
            facts=self._facts,
            proxies=self.xds.status,
        )
        return [*history.routes(), *RecordingPage(self.recorder).routes(), *operators.routes()]

    def _reloaded(self, config: Config, changed: Sequence[str]) -> None:
        self.history.configured(config.text, name="config_reloaded", changed=changed)

    # What the admin server sees.

    def _inside(self) -> Inside:
        return Inside(
            plan=lambda: self.loop.fleet.plan,
            fleet=lambda: describe_fleet(self.loop, self.registry, self._clock()),
            snapshots=lambda: self.loop.snapshots,
            proxies=self.xds.status,
            metrics=Exposition(self.tally, self._gauges, self._many_gauges).take,
            not_ready=self._not_ready,
            drain=self._drain,
            evidence=lambda: describe_evidence(self.intake, self.loop.fleet.topology),
            note=self._note,
            page=self.page.index,
            routes=(*self._pages_of_the_past(), *self.page.routes()),
            access=self.access,
        )

    def _facts(self) -> dict[str, Any]:
        return live_facts(
            self.loop.fleet.policy,
            not_ready=self._not_ready(),
            config_valid=self.topology.is_valid,
            history_trouble=self.store.trouble,
        )

    def _note(self, name: str) -> str:
        reports = self.intake.reports
        return "" if reports is None else reports.note(InstanceId(name), self._clock())

    def _not_ready(self) -> str | None:
        if self.loop.is_warm:
            return None
        return f"waiting for telemetry of {', '.join(logs.listed(self.loop.silent)) or 'nobody'}"

    def _drain(self, name: str, draining: bool, who: str, why: str) -> str:
        instance = InstanceId(name)
        if all(each.id != instance for _, _, each in self.loop.fleet.topology.instances()):
            raise UnknownInstanceError(name)
        consequence = consequences.of_drain if draining else consequences.of_undrain
        note = consequence(self.loop.fleet, instance)
        drain = Drain(instance=instance, draining=draining, who=who, why=why)
        self.history.drained(drain)
        self.loop.drain(drain)
        return note

    def _gauges(self) -> Iterator[Reading]:
        yield "fleet_warm", (), float(self.loop.is_warm)
        yield "fleet_config_valid", (), float(self.topology.is_valid)
        yield "fleet_agents_connected", (), float(self.telemetry.streams)
        yield "fleet_ownership_conflicts", (), float(len(self.registry.conflicts()))
        yield "fleet_build_info", (__version__,), 1.0
        yield from gauges_of_proxies(self.xds.status())
        yield "fleet_evidence_streams", (), float(self.evidence.streams)
        yield from self.intake.readings()
        yield from self.pulse.readings()
        yield from self.store.readings()
        yield from self.istio.readings()
        yield from self.access.readings()

    def _many_gauges(self) -> Iterator[Reading]:
        fleet, latest = self.loop.fleet, dict(self.loop.latest)
        return gauges_of_fleet(fleet.plan, latest, fleet.vram_tripped, self._clock())
