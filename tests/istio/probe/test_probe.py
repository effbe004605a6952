"""The probe against an istiod that is played: metrics, events, and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryResponse

from tests.fakes.envoy import eventually
from tests.fakes.istiod_port import ROUTE, IstiodPort, istiod_port, route_table
from tests.fakes.plans import a_plan
from xds_server.config.istio_schema import ProbeSection
from xds_server.config.load import load_file
from xds_server.core.model import ClassName, ModelName
from xds_server.core.plan import ClassPlan, Plan, Reason
from xds_server.istio.mesh import MeshNow, mesh_of
from xds_server.istio.probe.probe import Probe, route_names
from xds_server.istio.probe.proto import parse
from xds_server.istio.probe.seen import SeenRoute
from xds_server.istio.way import Around
from xds_server.istio.weights import weigh
from xds_server.observability.history import History
from xds_server.observability.metrics import Tally
from xds_server.store.row import Row

CONFIG = load_file(Path(__file__).parents[1] / "mesh.yaml")
TLS = Path(__file__).parents[2] / "data/tls"
CERT = TLS / "cert.pem"
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
            mesh=MeshNow(lambda: self.config.istio, lambda: loop.fleet.topology),
        )
        self.probe = Probe(self.around, ProbeSection(**({"late_s": 60.0} | section)))

    def plan(self, *split: int) -> None:
        self.hear(a_plan(CONFIG.topology, split))

    def hear(self, plan: Plan) -> None:
        for listener in self._listeners:
            listener(plan)

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
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}", late_s=1)
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
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}", late_s=1)
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.named("mesh_not_following"))
    assert "(admins) lead elsewhere: another VirtualService" in bench.rows[0].text


async def test_an_istiod_that_is_gone_is_said_once_and_is_no_alarm_about_weights(monkeypatch):
    monkeypatch.setattr("xds_server.istio.probe.outage.TELL_S", 0.2)
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
        await is_true(lambda: bench.named("mesh_unwatched"))
        bench.plan(500, 500, 0)
        istiod.set(told(50, 50))
        async with istiod_port(istiod, port=istiod.port):
            await is_true(lambda: bench.unapplied_s == 0.0)
            assert bench.gauge("fleet_istio_probe_connected") == 1.0
        await is_true(lambda: bench.named("mesh_watched"))
        assert {each.name for each in bench.rows} == {"mesh_unwatched", "mesh_watched"}
        assert len(bench.named("mesh_watched")) == 1
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
        await is_true(lambda: bench.named("mesh_watched"))  # and it is said that all is well again
        assert len(bench.named("mesh_unwatched")) == 1


@pytest.mark.parametrize("broken", [True, False], ids=["bytes that are no routes", "no token"])
async def test_an_istiod_that_cannot_be_understood_or_lets_nobody_in_is_trouble(broken):
    istiod = IstiodPort(token="" if broken else "secret")
    istiod.is_broken = broken
    async with istiod_port(istiod):
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            said = "something else than routes" if broken else "UNAUTHENTICATED: authentication"
            # gRPC may lose the reason of one attempt, when our first words meet the end of the stream.
            await is_true(lambda: any(said in each.text for each in bench.rows))
            assert bench.unapplied_s is None


def tls(*, client: bool = False):
    pair = ((TLS / "key.pem").read_bytes(), (TLS / "cert.pem").read_bytes())
    return grpc.ssl_server_credentials(
        [pair], root_certificates=pair[1] if client else None, require_client_auth=client
    )


@pytest.mark.parametrize("proof", ["token", "certificate"])
async def test_it_gets_in_over_tls_with_a_token_or_a_certificate(proof, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("secret\n")
    cert, key = str(TLS / "cert.pem"), str(TLS / "key.pem")
    files = {
        "token": {"token_file": str(secret)},
        "certificate": {"certificate_file": cert, "key_file": key},
    }[proof]
    istiod = IstiodPort(token="secret" if proof == "token" else "")
    async with istiod_port(istiod, credentials=tls(client=proof == "certificate")):
        istiod.set(told(90, 10))
        bench = Bench(
            istiod=f"127.0.0.1:{istiod.port}", ca_file=cert, server_name="localhost", **files
        )
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
    assert bench.named("mesh_not_following") == []


@pytest.mark.parametrize(
    ("section", "said"),
    [
        pytest.param({"ca_file": "/nowhere/ca.pem"}, "/nowhere/ca.pem: No such file", id="no CA"),
        pytest.param(
            {"ca_file": str(CERT), "token_file": "/nowhere/token", "server_name": "localhost"},
            "/nowhere/token: No such file",
            id="no token",
        ),
        pytest.param(
            {"ca_file": str(CERT), "server_name": "other"}, "UNAVAILABLE", id="no such name"
        ),
    ],
)
async def test_what_keeps_it_out_is_told_with_the_file_or_istiods_words(section, said):
    async with istiod_port(IstiodPort(), credentials=tls()) as istiod:
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}", **section)
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.named("mesh_unwatched"))
    assert said in bench.rows[0].text


async def test_an_istiod_that_ends_the_stream_politely_is_lost_too():
    istiod = IstiodPort()
    istiod.ends_after = 1
    async with istiod_port(istiod):
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.named("mesh_unwatched"))
    assert "istiod ended the stream" in bench.rows[0].text


async def test_a_connection_that_istiod_ends_in_between_is_no_event_and_no_alarm():
    istiod = IstiodPort()
    async with istiod_port(istiod):
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}", late_s=1)
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            istiod.ends_after = 2  # as after its `keepaliveMaxServerConnectionAge`
            istiod.set(told(90, 10))
            await is_true(lambda: bench.gauge("fleet_istio_probe_connected") == 0.0)
            istiod.ends_after = None
            await is_true(lambda: bench.unapplied_s == 0.0)
            bench.plan(500, 500, 0)
            istiod.set(told(50, 50))
            await is_true(lambda: bench.applied() == 1)
    assert bench.rows == []


def test_an_alarm_ends_though_weights_are_always_on_their_way():
    bench = Bench(istiod="127.0.0.1:1", late_s=8)
    bench.probe._clock = lambda: now
    now = 0.0
    bench.plan(900, 100, 0)
    follow = bench.probe._follows[ModelName("chat")]

    def look(share: int) -> None:
        clusters = ((PRIMARY, share), (FALLBACK, 100 - share))
        follow.look((SeenRoute(name="chat", clusters=clusters),), now)
        bench.probe._judge(ModelName("chat"), follow, now)

    look(50)
    for step in range(
        1, 60
    ):  # a change a second; the mesh stands still, and then is always one behind
        now = float(step)
        bench.plan(10 * (30 + step % 40), 1000 - 10 * (30 + step % 40), 0)
        look(50 if step < 20 else 30 + (step - 1) % 40)
    assert [each.name for each in bench.rows] == ["mesh_not_following", "mesh_following"]


async def test_an_istiod_that_says_nothing_is_no_connection(monkeypatch):
    monkeypatch.setattr("xds_server.istio.probe.stream.FIRST_S", 0.3)
    async with istiod_port(IstiodPort(debounce_s=3600)) as istiod:
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.named("mesh_unwatched"))
    assert "took the stream and said nothing for 0.3 s" in bench.rows[0].text


async def test_responses_about_other_types_are_passed_over():
    istiod = IstiodPort()
    istiod.is_chatty = True
    async with istiod_port(istiod):
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
        assert bench.rows == []


def test_routes_that_lead_to_no_cluster_are_read_as_such():
    table = RouteConfiguration(name="8000")
    host = table.virtual_hosts.add(domains=["a", "a:8000"])
    host.routes.add(name="moved").redirect.path_redirect = "/"
    host.routes.add(name="asked").route.cluster_header = "x-cluster"
    table.virtual_hosts.add(domains=["a"]).routes.add(name="later").route.cluster = "b"
    response = DiscoveryResponse(type_url=ROUTE, version_info="1", nonce="n")
    response.resources.add().Pack(table)
    routes = parse(response.SerializeToString())
    assert routes is not None
    assert [each.name for each in routes.configs["8000"]["a"]] == ["moved", "asked"]
    assert all(each.clusters == () for each in routes.configs["8000"]["a:8000"])


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


async def test_a_mesh_without_models_is_not_watched_until_it_has_some_again():
    async with istiod_port(IstiodPort()) as istiod:
        istiod.set(told(90, 10))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        async with bench.running():
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            assert CONFIG.istio is not None
            bench.config = replace(CONFIG, istio=CONFIG.istio.model_copy(update={"models": []}))
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.gauge("fleet_istio_probe_connected") == 0.0)
            await is_true(lambda: istiod.streams == 0)
            assert bench.unapplied_s is None
            bench.config = CONFIG
            bench.plan(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
        assert bench.rows == []


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


async def test_classes_that_share_the_one_route_of_an_admins_are_looked_for_in_it():
    """The way through the Kubernetes API may only set weights in a route that is there."""
    async with istiod_port(IstiodPort()) as istiod:
        istiod.set(route_table(8000, {HOST: [("admins", {PRIMARY: 90, FALLBACK: 10})]}))
        bench = Bench(istiod=f"127.0.0.1:{istiod.port}")
        reason = Reason(rule="r", text="t")
        classes = tuple(
            ClassPlan(
                name=ClassName(name), demand_ratio=0.5, weights=weights,
                is_shed=False, is_rejected=False, reason=reason,
            )
            for name, weights in (("core", (1000, 0, 0)), ("batch", (0, 1000, 0)))
        )  # fmt: skip

        def divided(*split: int):
            plan = a_plan(CONFIG.topology, split)
            (model,) = plan.models
            return replace(plan, models=(replace(model, classes=classes),))

        async with bench.running():
            bench.hear(divided(900, 100, 0))
            await is_true(lambda: (bench.unapplied_s or 0) > 0)
            bench.push(900, 100, 0)
            await is_true(lambda: bench.unapplied_s == 0.0)
            bench.hear(divided(500, 500, 0))
            bench.push(500, 500, 0)
            istiod.set(route_table(8000, {HOST: [("admins", {PRIMARY: 50, FALLBACK: 50})]}))
            await is_true(lambda: bench.applied() == 1)
            assert bench.unapplied_s == 0.0


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
