"""The probe against an istiod that is played: metrics, events, and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.envoy import eventually
from tests.fakes.istiod_port import IstiodPort, istiod_port, route_table
from tests.fakes.plans import a_plan
from xds_server.config.istio_schema import ProbeSection
from xds_server.config.load import load_file
from xds_server.core.model import ModelName
from xds_server.istio.mesh import mesh_of
from xds_server.istio.probe.probe import Probe, route_names
from xds_server.istio.way import Around
from xds_server.istio.weights import weigh
from xds_server.observability.history import History
from xds_server.observability.metrics import Tally
from xds_server.store.row import Row

CONFIG = load_file(Path(__file__).parents[1] / "mesh.yaml")
HOST = "llm.ai.svc.cluster.local"
PRIMARY = "outbound|8000||vllm-70b.ai.svc.cluster.local"
FALLBACK = "outbound|8000||vllm-8b.ai.svc.cluster.local"


def told(big: int, small: int):
    clusters = {name: n for name, n in ((PRIMARY, big), (FALLBACK, small)) if n}
    return route_table(8000, {HOST: [("chat", clusters)]})


class Bench:
    """A probe, with what it hears and says."""

    def __init__(self, **section: Any) -> None:
        self.config = CONFIG
        self.rows: list[Row] = []
        self.tally = Tally()
        self._listeners: list[Any] = []
        loop: Any = SimpleNamespace(
            is_warm=True,
            subscribe=self._listeners.append,
            fleet=SimpleNamespace(topology=CONFIG.topology),
        )
        self.loop = loop
        self.around = Around(
            config=lambda: self.config,
            loop=loop,
            tally=self.tally,
            history=History(self.rows.append, topology=lambda: CONFIG.topology),
        )
        self.probe = Probe(self.around, ProbeSection(**({"late_s": 1.0} | section)))

    def plan(self, *split: int) -> None:
        for listener in self._listeners:
            listener(a_plan(CONFIG.topology, split))

    def push(self, *split: int) -> None:
        """Say that the mesh was told the weights of a plan."""
        plan = a_plan(CONFIG.topology, split)
        for model in mesh_of(self.config.istio, CONFIG.topology).models:
            self.around.published.tell(weigh(plan.models[0], model))

    def gauge(self, name: str, *labels: str) -> float | None:
        found = {(each[0], each[1]): each[2] for each in self.probe.readings()}
        return found.get((name, labels))

    @property
    def unapplied_s(self) -> float | None:
        return self.gauge("fleet_istio_unapplied_seconds", "chat")

    def applied(self) -> int:
        """How many arrivals were timed."""
        return int(sum(self.tally.histograms.get("fleet_istio_applied_seconds", [0.0])[:-1]))

    def named(self, name: str) -> list[Row]:
        return [each for each in self.rows if each.name == name]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.probe.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def is_true(check) -> None:
    async def probe() -> bool:
        return bool(check())

    await eventually(probe)


async def test_weights_that_arrive_are_timed_from_their_push():
    async with istiod_port(IstiodPort()) as istiod:
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            assert bench.gauge("fleet_istio_probe_connected") == 1.0
            assert bench.applied() == 0, "they were there before anybody looked"
            for count, (big, small) in enumerate(((50, 50), (0, 100), (100, 0)), 1):
                bench.plan(big * 10, small * 10, 0)
                assert (bench.unapplied_s or 0) > 0
                bench.push(big * 10, small * 10, 0)
                istiod.set(told(big, small))
                await is_true(lambda count=count: bench.applied() == count)
                assert bench.unapplied_s == 0.0
        assert bench.rows == []
        assert istiod.acks == ["1", "2", "3", "4"], "istiod sends nothing to who does not accept"


async def test_it_comes_as_a_sidecar_of_the_models_namespace():
    async with istiod_port(IstiodPort()) as istiod:
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}", labels={"team": "ml"}, cluster_id="c1")
        async with bench.running():
            bench.plan(1000, 0, 0)
            await is_true(lambda: istiod.requests)
    node = istiod.requests[0].node
    assert node.id == "sidecar~127.0.0.1~gpu-xds-probe.ai~ai.svc.cluster.local"
    metadata = dict(node.metadata)
    assert dict(metadata.pop("LABELS")) == {"app": "gpu-xds-probe", "team": "ml"}
    assert metadata == {
        "NAMESPACE": "ai",
        "NAME": "gpu-xds-probe",
        "CLUSTER_ID": "c1",
        "SERVICE_ACCOUNT": "default",
    }
    assert list(istiod.requests[0].resource_names) == [
        "8000",
        "8080",
        f"{HOST}:8000",
        f"{HOST}:8080",
    ]


async def test_a_mesh_that_does_not_follow_is_an_event_with_the_cause_and_its_end_is_one_too():
    async with istiod_port(IstiodPort()) as istiod:
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            bench.plan(500, 500, 0)
            await is_true(lambda: bench.named("mesh_not_following"))
            assert (bench.unapplied_s or 0) >= 1.0
            (row,) = bench.rows
            assert row.model == "chat"
            assert f"{HOST}: wanted primary=50% fallback=50% static=0%, sidecars have" in row.text
            assert row.data["wanted"] == ["primary=50% fallback=50% static=0%"]
            istiod.set(told(50, 50))
            await is_true(lambda: bench.named("mesh_following"))
            assert bench.unapplied_s == 0.0
            assert len(bench.rows) == 2


async def test_a_virtual_service_of_somebody_else_is_named():
    async with istiod_port(IstiodPort()) as istiod:
        istiod.set(route_table(8000, {HOST: [("admins", {"outbound|80||old.ai.svc": 1})]}))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.named("mesh_not_following"))
    assert "(admins) lead elsewhere: another VirtualService" in bench.rows[0].text


async def test_an_istiod_that_is_gone_is_said_once_and_is_no_alarm_about_weights():
    istiod = IstiodPort()
    async with istiod_port(istiod):
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        task = asyncio.create_task(bench.probe.run())
        bench.plan(900, 100, 0)
        await is_true(lambda: bench.unapplied_s == 0.0)
    try:
        await is_true(lambda: bench.gauge("fleet_istio_probe_connected") == 0.0)
        assert bench.unapplied_s is None, "nobody knows"
        bench.plan(500, 500, 0)
        istiod.set(told(50, 50))
        async with istiod_port(istiod, port=istiod.port):
            await is_true(lambda: bench.unapplied_s == 0.0)
            assert bench.gauge("fleet_istio_probe_connected") == 1.0
        assert bench.rows[0].name == "mesh_unwatched"
        assert bench.named("mesh_not_following") == []
        assert bench.applied() == 0
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_istiod_that_is_not_there_is_tried_again_with_one_event():
    async with istiod_port(IstiodPort()) as gone:
        port = gone.port
    bench = Bench(istiod=f"127.0.0.1:{port}")
    async with bench.running():
        bench.plan(900, 100, 0)
        await is_true(lambda: bench.named("mesh_unwatched"))
        assert bench.gauge("fleet_istio_probe_connected") == 0.0
        istiod = IstiodPort()
        istiod.set(told(90, 10))
        async with istiod_port(istiod, port=port):
            await is_true(lambda: bench.unapplied_s == 0.0)
        assert len(bench.named("mesh_unwatched")) >= 1


@pytest.mark.parametrize("broken", [True, False], ids=["bytes that are no routes", "no token"])
async def test_an_istiod_that_cannot_be_understood_or_lets_nobody_in_is_trouble(broken):
    istiod = IstiodPort(token="" if broken else "secret")
    istiod.is_broken = broken
    async with istiod_port(istiod):
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.named("mesh_unwatched"))
    said = "something else than routes" if broken else "UNAUTHENTICATED: authentication failure"
    assert said in bench.rows[0].text


async def test_a_new_configuration_is_watched_without_a_restart():
    async with istiod_port(IstiodPort()) as istiod:
        other = "other.ai.svc.cluster.local"
        table = route_table(8000, {HOST: [("a", {PRIMARY: 1})], other: [("b", {FALLBACK: 1})]})
        istiod.set(table)
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(1000, 0, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            assert CONFIG.istio is not None
            (model,) = CONFIG.istio.models
            moved = model.model_copy(update={"host": other})
            section = CONFIG.istio.model_copy(update={"models": [moved]})
            bench.config = replace(CONFIG, istio=section)
            bench.plan(0, 1000, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            assert f"{other}:8000" in list(istiod.requests[-1].resource_names)


async def test_a_model_that_only_gateways_route_has_no_alarm():
    assert CONFIG.istio is not None
    (model,) = CONFIG.istio.models
    section = CONFIG.istio.model_copy(
        update={"models": [model.model_copy(update={"gateways": ["ai/public"]})]}
    )
    async with istiod_port(IstiodPort()) as istiod:
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        bench.config = replace(CONFIG, istio=section)
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.gauge("fleet_istio_probe_connected") is not None)
            assert bench.unapplied_s is None


async def test_plans_before_the_state_is_authoritative_are_not_waited_for():
    bench = Bench(istiod="127.0.0.1:1")
    bench.loop.is_warm = False
    bench.plan(900, 100, 0)
    assert bench.probe._follows == {}


def test_ports_that_clients_call_may_be_told():
    mesh = mesh_of(CONFIG.istio, CONFIG.topology)
    section = ProbeSection(istiod="a:1", ports=[80])
    assert route_names(section, mesh) == ("80", f"{HOST}:80")
    assert mesh.model(ModelName("chat")) is not None
