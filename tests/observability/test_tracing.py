"""Traces of pushes, as a real receiver gets them from a real server."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest
from aiohttp import web
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.envoy import eventually
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT, command, running_server
from xds_server.observability.step import Step
from xds_server.observability.tracing import Tracing, TracingUnavailableError
from xds_server.resources.snapshot import ENDPOINT

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
INSTANCES = ("a100-0", "a100-1", "l4-0")


@dataclass
class Receiver:
    """Takes OTLP over HTTP in JSON."""

    url: str = ""
    spans: list[dict] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    async def take(self, request: web.Request) -> web.Response:
        for resource in (await request.json())["resourceSpans"]:
            self.services.add(attributes(resource["resource"])["service.name"])
            for scope in resource["scopeSpans"]:
                self.spans += scope["spans"]
        return web.json_response({})

    def named(self, name: str) -> list[dict]:
        return [each for each in self.spans if each["name"] == name]


def attributes(span: dict) -> dict:
    return {
        each["key"]: value["arrayValue"].get("values", [])
        if "arrayValue" in (value := each["value"])
        else next(iter(value.values()))
        for each in span.get("attributes", [])
    }


@asynccontextmanager
async def receiver():
    made = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    try:
        yield made
    finally:
        await runner.cleanup()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text((ROOT / "tests/config/design.yaml").read_text())
    return path


async def test_a_push_is_one_trace_from_what_was_heard_to_what_a_proxy_accepted(config, tmp_path):
    async with (
        receiver() as got,
        running_server(config, tmp_path / "state", ["--traces-url", got.url]) as server,
        connected_agent(server.target) as agent,
        grpc.aio.insecure_channel(server.target) as channel,
    ):
        await agent.greet(*INSTANCES)
        await agent.send(*(agent.sample(name) for name in INSTANCES))
        await server.event("server_warm", cause="telemetry")
        stream = channel.stream_stream(
            ADS,
            request_serializer=DiscoveryRequest.SerializeToString,
            response_deserializer=DiscoveryResponse.FromString,
        )()
        request = DiscoveryRequest(type_url=ENDPOINT, resource_names=["chat/primary"])
        request.node.id, request.node.cluster = "edge-1", "test"
        request.node.user_agent_name = "envoy"
        await stream.write(request)

        async def accept() -> None:
            answer = await asyncio.wait_for(stream.read(), PATIENCE_S)
            await stream.write(
                DiscoveryRequest(
                    type_url=ENDPOINT,
                    resource_names=["chat/primary"],
                    response_nonce=answer.nonce,
                    version_info=answer.version_info,
                )
            )

        await accept()
        await agent.report("a100-0", state=pb.ENGINE_STATE_DOWN)
        await accept()

        def push() -> dict | None:
            for span in got.named("evaluate and push"):
                said = [each["stringValue"] for each in attributes(span)["fleet.events"]]
                if "instance_down a100-0" in said:
                    return span
            return None

        async def whole() -> dict[str, dict] | None:
            span = push()
            if span is None:
                return None
            parts = {
                each["name"]: each
                for each in got.spans
                if each.get("parentSpanId") == span["spanId"]
            }
            return parts if len(parts) == 3 else None

        parts = await eventually(whole, what="the trace")
        stream.cancel()
    assert set(parts) == {"evaluate", "publish", "accepted by a proxy"}
    span = push()
    accepted = parts["accepted by a proxy"]
    assert {each["traceId"] for each in parts.values()} == {span["traceId"]}
    about = attributes(span)
    assert about["fleet.inputs"] == "1"
    assert about["fleet.may_wait"] is False
    assert 0 <= float(about["fleet.oldest_sample_s"]) < 5
    assert attributes(accepted)["fleet.proxy"] == "edge-1"
    assert attributes(accepted)["fleet.type"] == "ClusterLoadAssignment"
    began = int(span["startTimeUnixNano"])
    assert began <= int(accepted["startTimeUnixNano"]) <= int(accepted["endTimeUnixNano"])
    assert abs(time.time() - began / 1e9) < 60
    assert got.services == {"gpu-xds"}


async def test_nothing_is_traced_that_publishes_nothing(config, tmp_path):
    async with (
        receiver() as got,
        running_server(config, tmp_path / "state", ["--traces-url", got.url]) as server,
        connected_agent(server.target) as agent,
    ):
        await agent.greet(*INSTANCES)
        for turn in range(1, 6):
            await agent.send(*(agent.sample(name) for name in INSTANCES))

            async def heard(count: int = 3 * turn) -> bool:
                return await server.metric("fleet_samples_total") == count

            await eventually(heard, what="the samples")
        evaluations = await server.metric("fleet_evaluations_total")
        published = await server.metric("fleet_publish_seconds_count")
        assert await server.stop() == 0
    assert published < evaluations
    assert len(got.named("evaluate and push")) == published


@pytest.mark.parametrize("listens", [False, True], ids=["refuses", "never-answers"])
async def test_a_receiver_that_is_away_costs_traces_and_nothing_else(config, tmp_path, listens):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        if listens:
            nobody.listen()
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces"
        async with (
            running_server(config, tmp_path / "state", ["--traces-url", url]) as server,
            connected_agent(server.target) as agent,
        ):
            await agent.greet(*INSTANCES)
            await agent.send(*(agent.sample(name) for name in INSTANCES))
            await server.event("server_warm", cause="telemetry")
            await agent.report("a100-0", state=pb.ENGINE_STATE_DOWN)
            await server.event("instance_down", instance="a100-0")
            began = time.monotonic()
            assert await server.stop() == 0
            assert time.monotonic() - began < 9, "the library's own end takes ten seconds"
            assert all(line.startswith("{") for line in server.text.splitlines()), server.text


async def test_the_environment_may_name_the_service(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "fleet-west")
    async with receiver() as got:
        tracing = Tracing(got.url, time.monotonic)
        now = time.monotonic()
        tracing.step(
            Step(
                started=now,
                decided=now,
                published=now,
                inputs=0,
                oldest_s=None,
                may_wait=False,
                events=(),
            )
        )
        await asyncio.to_thread(tracing.close)
        assert got.services == {"fleet-west"}
        assert "fleet.oldest_sample_s" not in attributes(got.named("evaluate and push")[0])


def test_without_the_packages_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingUnavailableError, match=r"pip install 'gpu-xds\[otel\]'"):
        Tracing("http://127.0.0.1:1/v1/traces", time.monotonic)


async def test_a_server_without_the_packages_does_not_start_and_says_why(config, tmp_path):
    (tmp_path / "hidden/opentelemetry").mkdir(parents=True)
    (tmp_path / "hidden/opentelemetry/__init__.py").write_text("raise ImportError('hidden')")
    url = "http://127.0.0.1:1/v1/traces"
    process = await asyncio.create_subprocess_exec(
        *command(config, tmp_path / "state", "--traces-url", url),
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": f"{tmp_path / 'hidden'}:{ROOT}:{ROOT / 'protos'}"},
    )
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 1
    assert b"traces need packages that are not installed" in said
    assert b"Traceback" not in said
