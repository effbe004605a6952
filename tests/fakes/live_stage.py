"""The live page over a fleet that a test moves by hand: a real server, no brain and no proxies."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.plans import a_reason
from xds_server.admin.access import Access
from xds_server.admin.live_page import LivePage
from xds_server.admin.server import AdminServer, Inside, UnknownInstanceError
from xds_server.core.model import InstanceId, ModelName, TierName
from xds_server.core.plan import (
    EndpointHealth,
    FaultState,
    Freshness,
    InstancePlan,
    Level,
    ModelPlan,
    Plan,
    TierPlan,
)
from xds_server.core.sample import EngineFacts, Sample
from xds_server.observability.metrics import Exposition, Tally
from xds_server.resources.capability import Capability
from xds_server.store.row import Kind, Row
from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy
from xds_server.xds.syncz import ProxyStatus, SyncState, TypeStatus

TYPES = ("cluster.v3.Cluster", "endpoint.v3.ClusterLoadAssignment", "listener.v3.Listener")


def an_instance(name: str, **changes: Any) -> InstancePlan:
    """Plan a healthy instance, but for the changes."""
    healthy = InstancePlan(
        id=InstanceId(name),
        state=FaultState.HEALTHY,
        freshness=Freshness.FRESH,
        ceiling=1.0,
        weight=1000,
        health=EndpointHealth.HEALTHY,
        pressure=0.4,
        basis=a_reason("load_balanced"),
    )
    return dataclasses.replace(healthy, **changes)


def a_tier(name: str, weight: int, instances: list[InstancePlan], **changes: Any) -> TierPlan:
    """Plan a healthy tier, but for the changes."""
    healthy = TierPlan(
        name=TierName(name),
        level=Level.HEALTHY,
        pressure=0.4 if instances else None,
        share=weight / 1000,
        weight=weight,
        spill=0.0,
        demand=12.0,
        capacity=20.0 if instances else None,
        reason=a_reason("fits"),
        instances=tuple(instances),
    )
    return dataclasses.replace(healthy, **changes)


def a_model(primary: int = 1000, *, name: str = "chat", many: int = 2, **changes: Any) -> ModelPlan:
    """Plan a model whose primary has this weight and the first of whose instances has these changes."""
    first, *others = (f"{name}-{index}" for index in range(many))
    tiers = (
        a_tier("primary", primary, [an_instance(first, **changes), *map(an_instance, others)]),
        a_tier("fallback", 1000 - primary, [an_instance(f"{name}-small")]),
        a_tier("static", 0, []),
    )
    return ModelPlan(name=ModelName(name), tiers=tiers)


def a_proxy(name: str, state: SyncState = SyncState.SYNCED, error: str = "") -> ProxyStatus:
    """Describe a proxy that stands so in every type."""
    types = tuple(
        TypeStatus(
            type_url=f"type.googleapis.com/envoy.config.{each}",
            state=state,
            sent_version="2",
            acked_version="1" if error else "2",
            sent_age_s=3.0,
            acked_age_s=3.0,
            lag_s=0.004,
            nacks=int(bool(error)),
            error=error,
            error_version="2" if error else "",
            error_names=(),
            error_age_s=1.0 if error else None,
            subscribed=1,
            wildcard=False,
        )
        for each in TYPES
    )
    proxy = Proxy(name, "edge", "envoy", "1.40.0", Capability.COMPOSITE)
    return ProxyStatus(proxy, Protocol.DELTA, 60.0, types)


class LiveStage:
    """What the page shows; change the fields and it follows."""

    def __init__(self) -> None:
        self.models: list[ModelPlan] = [a_model()]
        self.proxies = [a_proxy("edge-1"), a_proxy("edge-2")]
        self.silent: set[str] = set()
        """Instances that nothing was ever heard of."""
        self.observed: dict[str, float] = {}
        """When an instance was heard of, if it is not just now."""
        self.drained: list[tuple[str, bool, str, str]] = []
        self.access = Access()
        """Who may look and order."""
        self.asked_for_proxies = 0
        self.is_over = False
        self.port = 0
        self.page = LivePage(
            plan=lambda: Plan(models=tuple(self.models), next_deadline=None),
            latest=self._latest,
            proxies=self._proxies,
            facts=lambda: {
                "unix_s": time.time(),
                "version": "0",
                "not_ready": None,
                "config_valid": True,
                "history_trouble": "",
                "stale_s": 3.0,
                "high": 0.8,
                "critical": 0.95,
            },
            is_over=lambda: self.is_over,
            clock=time.monotonic,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def happened(self, name: str, *, kind: Kind = Kind.DECISION, **fields: Any) -> None:
        """Tell an event."""
        self.page.happened(Row(at_unix_s=time.time(), kind=kind, name=name, **fields))

    def _latest(self) -> dict[InstanceId, Sample]:
        now = time.monotonic()
        return {
            each.id: Sample(
                instance=each.id,
                observed_at=self.observed.get(each.id, now),
                engine=EngineFacts(kv_ratio=0.4, waiting=0.0, running=3.0),
            )
            for model in self.models
            for tier in model.tiers
            for each in tier.instances
            if each.id not in self.silent
        }

    def _proxies(self) -> list[ProxyStatus]:
        self.asked_for_proxies += 1
        return self.proxies

    def drain(self, name: str, draining: bool, who: str, why: str) -> str:
        """Note an order, as the admin server gives it."""
        if not name.startswith("chat"):
            raise UnknownInstanceError(name)
        self.drained.append((name, draining, who, why))
        return ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[LiveStage]:
        """Serve on a free port for as long as the block lasts."""
        inside = Inside(
            plan=lambda: Plan(models=tuple(self.models), next_deadline=None),
            fleet=dict,
            snapshots=dict,
            proxies=list,
            metrics=Exposition(Tally(), lambda: iter(()), lambda: iter(())).take,
            not_ready=lambda: None,
            drain=self.drain,
            evidence=dict,
            page=self.page.index,
            routes=self.page.routes(),
            access=self.access,
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            self.port = listening.getsockname()[1]
            server = AdminServer(inside)
            task = asyncio.create_task(server.serve_on(listening), name="admin")
            try:
                yield self
            finally:
                self.is_over = server.should_exit = True
                await task
