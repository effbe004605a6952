"""The way through the Kubernetes API as a part of the process: plans in, objects in the cluster out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping

from xds_server.clock import Clock
from xds_server.config.config import Config
from xds_server.config.istio_schema import KubernetesSection
from xds_server.core.plan import ModelPlan, Plan
from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.advice import advise
from xds_server.istio.kubernetes.auth import SignIn, own_namespace
from xds_server.istio.kubernetes.change import Wanted, title_of
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import AuthError, KubernetesError, Ref
from xds_server.istio.kubernetes.keeper import Keeper
from xds_server.istio.kubernetes.leadership import Leadership
from xds_server.istio.kubernetes.lease import LeaseRules
from xds_server.istio.kubernetes.objects import GROUP, SERVICES, Owned
from xds_server.istio.kubernetes.pace import Pace
from xds_server.istio.kubernetes.report import Reporter
from xds_server.istio.kubernetes.wanted import NAMESPACE, all_wanted
from xds_server.istio.way import Around
from xds_server.observability.metrics import Reading

CONNECT_RETRY_S = 5.0
CONFIG_LOOK_S = 2.0
"""A reload that changes only names of the mesh brings no new plan; it is noticed after this long."""
ADVICE_S = 300.0
"""What others make in the mesh is looked at this often: another one for the same host may come any day."""
PLAN_GAP_S = 0.05
"""Plans are taken in at most this often: every object has its own, longer gap anyway."""
Key = tuple[Ref, str]
"""An object, and in somebody else's the route."""


def target_of(section: KubernetesSection, environ: Mapping[str, str] = os.environ) -> Ref:
    """Name the lease."""
    namespace = section.namespace or own_namespace(environ=environ) or NAMESPACE
    return lease.ref(namespace, section.lease)


def owner_of(target: Ref) -> str:
    """Return what names this installation in its objects."""
    return f"{target.namespace}.{target.name}"


class MeshWriter:
    """Keeps the objects up to date while it leads."""

    def __init__(
        self, around: Around, section: KubernetesSection, *, clock: Clock = time.monotonic
    ) -> None:
        self._around = around
        self._section = section
        self._clock = clock
        self._report = Reporter(around.tally, around.history, around.published)
        self._plans: tuple[ModelPlan, ...] | None = None
        self._made: list[Wanted] = []
        """What was wanted last."""
        self._config: Config | None = None
        self._changed = asyncio.Event()
        self._paces: dict[Ref, Pace] = {}
        self._keepers: dict[Key, tuple[Keeper, asyncio.Task[None]]] = {}
        self._target = target_of(section)
        around.loop.subscribe(self._heard)

    def listen(self) -> None:
        """Take no port: it listens to nobody."""

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        yield from self._report.readings()

    async def run(self) -> None:
        """Take part in the election and write while elected, until cancelled."""
        section = self._section
        client = KubernetesClient(SignIn(kubeconfig=section.kubeconfig, context=section.context))
        try:
            version = await self._connect(client)
            leadership = Leadership(
                client=client,
                target=self._target,
                # Two processes of one host are two candidates, and a restarted one is a third.
                me=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
                rules=LeaseRules.of(section.lease_s),
                clock=self._clock,
            )
            leadership.on_change = self._led
            leadership.on_trouble = self._report.lease_trouble
            async with asyncio.TaskGroup() as group:
                elections = group.create_task(leadership.run(), name="lease")
                try:
                    await self._follow(client, leadership, version)
                finally:
                    # Only once nobody writes any more the lease is given back.
                    elections.cancel()
        finally:
            await client.close()

    async def _connect(self, client: KubernetesClient) -> str:
        """Wait for a server that has Istio's kinds; return the version of its API."""
        while True:
            try:
                await client.open()
                versions = await client.versions(GROUP)
                if versions:
                    self._report.usable()
                    return versions[0]
                text = f"{client.server} has no {GROUP}: Istio's CRDs are not installed there"
            except AuthError as error:
                text = f"Cannot sign in to Kubernetes: {error}"
            except KubernetesError as error:
                text = f"Kubernetes at {client.server}: {error}"
            self._report.unusable(text)
            await client.close()
            await asyncio.sleep(CONNECT_RETRY_S)

    def _heard(self, plan: Plan) -> None:
        # Before that it is nobody's decision, only where the brain begins.
        if self._around.loop.is_warm and plan.models is not self._plans:
            self._plans = plan.models
            self._changed.set()

    def _led(self, leads: bool, why: str) -> None:
        self._report.leadership(leads, why)
        for keeper, _ in self._keepers.values():
            keeper.led(leads=leads)
        self._changed.set()

    async def _follow(self, client: KubernetesClient, leadership: Leadership, version: str) -> None:
        advised: tuple[Config, tuple[Key, ...]] | None = None
        again_at = float("-inf")
        self._keepers.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONFIG_LOOK_S):
                        await self._changed.wait()
                config = self._around.config()
                is_due = leadership.is_leader and self._clock() >= again_at
                if not self._changed.is_set() and config is self._config and not is_due:
                    continue
                self._changed.clear()
                self._config = config
                wanted = self._wanted(config, version)
                self._spread(wanted, group, client, leadership)
                told = (config, tuple(self._keepers))
                if leadership.is_leader and wanted and (is_due or told != advised):
                    advised, again_at = told, self._clock() + ADVICE_S
                    group.create_task(self._advise(client, wanted, version), name="istio-advice")
                await asyncio.sleep(PLAN_GAP_S)

    def _wanted(self, config: Config, version: str) -> list[Wanted]:
        if self._plans is None:
            return []
        fleet = self._around.loop.fleet
        section = config.istio.kubernetes if config.istio is not None else None
        self._made = all_wanted(
            self._around.mesh(),
            self._plans,
            fleet.topology,
            fleet.policy,
            section or self._section,
            version=version,
            owner=owner_of(self._target),
            before=self._made,
        )
        return self._made

    def _spread(
        self,
        wanted: list[Wanted],
        group: asyncio.TaskGroup,
        client: KubernetesClient,
        leadership: Leadership,
    ) -> None:
        """Give every object its wish; begin with new ones, let go of those that nobody wants any more."""
        named = {_key(each): each for each in wanted}
        if self._plans is None:
            return
        for key in [each for each in self._keepers if each not in named]:
            keeper, task = self._keepers.pop(key)
            task.cancel()
            self._report.forgotten(keeper.title)
            if not key[1] and leadership.is_leader:
                self._report.left(keeper.ref)
        for key, each in named.items():
            if key not in self._keepers:
                made = Keeper(
                    ref=each.ref,
                    client=client,
                    leadership=leadership,
                    report=self._report,
                    clock=self._clock,
                    # Routes in one object share its turn.
                    pace=self._paces.setdefault(each.ref, Pace(self._section.write_gap_s)),
                    title=title_of(each),
                )
                task = group.create_task(made.run(), name=f"istio-{title_of(each)}")
                self._keepers[key] = made, task
            self._keepers[key][0].want(each)
        self._order(named)

    def _order(self, named: Mapping[Key, Wanted]) -> None:
        """Tell routes what of ours is about the hosts that they go to: it has to be there first."""
        places = [
            (each.hosts, self._keepers[key][0])
            for key, each in named.items()
            if isinstance(each, Owned) and each.ref.plural != SERVICES
        ]
        for key, each in named.items():
            if isinstance(each, Owned) and each.ref.plural == SERVICES:
                needs = (keeper for hosts, keeper in places if hosts & each.hosts)
                self._keepers[key][0].needs = tuple(needs)

    async def _advise(self, client: KubernetesClient, wanted: list[Wanted], version: str) -> None:
        self._report.doubted(await advise(client, self._around.mesh(), wanted, version=version))


def _key(wanted: Wanted) -> Key:
    return wanted.ref, getattr(wanted, "route", "")
