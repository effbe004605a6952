"""The real process: what an operator sees of it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from pathlib import Path

import grpc.aio
import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT, command, running_server
from xds_server.cli import app
from xds_server.resources.snapshot import CLUSTER

DESIGN = (ROOT / "tests/config/design.yaml").read_text()
INSTANCES = ("a100-0", "a100-1", "l4-0")
DISCOVERING = """
models:
  - name: chat
    tiers:
      - {name: primary, instances: {discover: agents}}
      - {name: static, answer: {json: {busy: true}}}
"""
TOKEN = "a-token-of-some-length"


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(DESIGN)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


async def test_health_readiness_and_metrics_of_a_fresh_server(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "60"]) as server:
        assert await server.get("/healthz") == (200, "ok\n")
        status, text = await server.get("/readyz")
        assert (status, text) == (503, "not ready: waiting for telemetry of a100-0, a100-1, l4-0\n")
        async with (
            grpc.aio.insecure_channel(server.target) as channel,
            connected_agent(server.target) as agent,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            await agent.greet(*INSTANCES)
            for name in INSTANCES:
                await agent.report(name)
            await server.event("server_warm", cause="telemetry")
            assert (await server.get("/readyz"))[0] == 200
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            _, text = await server.get("/metrics")
            families = {each.name: each for each in text_string_to_metric_families(text)}
            assert families["fleet_warm"].samples[0].value == 1
            assert families["fleet_samples"].samples[0].value == 3
            assert families["fleet_agents_connected"].samples[0].value == 1
            shares = {
                each.labels["tier"]: each.value
                for each in families["fleet_tier_share_ratio"].samples
            }
            assert shares == {"primary": 1.0, "fallback": 0.0, "static": 0.0}
            count = [s for s in families["fleet_sample_age_seconds"].samples if "count" in s.name]
            assert count[0].value == 3
        assert await server.stop() == 0


async def test_every_page_shows_what_is_there(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        await server.event("server_warm", cause="grace_over")
        _, index = await server.get("/")
        assert "/debug/syncz" in index.splitlines()
        plan = await server.get_json("/debug/plan")
        assert [tier["name"] for tier in plan["models"][0]["tiers"]] == [
            "primary",
            "fallback",
            "static",
        ]
        snapshot = await server.get_json("/debug/snapshot?capability=composite")
        assert "chat/primary" in json.dumps(snapshot)
        assert (await server.get_json("/debug/snapshot"))["composite"] == snapshot
        assert (await server.get("/debug/snapshot?capability=x"))[0] == 404
        assert (await server.get("/debug/snapshot?capability=grpc"))[0] == 404
        assert await server.get_json("/debug/syncz") == []
        fleet = await server.get_json("/debug/fleet")
        assert [each["instance"] for each in fleet["instances"]] == list(INSTANCES)
        explained = await server.get_json("/debug/explain?subject=a100-0")
        assert explained
        assert (await server.get("/debug/explain"))[0] == 400
        status, text = await server.get("/debug/explain?subject=nobody")
        assert status == 404
        assert "nobody" in json.loads(text)["error"]
        asked = ("explain", "chat/primary", "--admin", server.admin_url)
        done = await asyncio.to_thread(run, *asked)
        assert done.exit_code == 0
        assert done.stdout.startswith("chat/primary (healthy")
        assert "What changes it: " in done.stdout
        done = await asyncio.to_thread(run, *asked, "--json")
        assert done.exit_code == 0
        assert json.loads(done.stdout) == await server.get_json(
            "/debug/explain?subject=chat/primary"
        )
        done = await asyncio.to_thread(run, "explain", "nobody", "--admin", server.admin_url)
        assert done.exit_code == 1
        assert done.stderr.startswith("xds-server: ")
        assert "nobody" in done.stderr


async def test_an_operator_drains_an_instance_and_takes_it_back(config, tmp_path):
    async with (
        running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server,
        connected_agent(server.target) as agent,
    ):
        await agent.greet(*INSTANCES)
        for name in INSTANCES:
            await agent.report(name)
        assert (await server.post("/drain/nobody"))[0] == 404
        evil = {"Origin": "http://evil.example"}
        async with server.session.post(f"{server.admin_url}/drain/l4-0", headers=evil) as answer:
            assert answer.status == 403
        status, _ = await server.post("/drain/a100-0?who=me&why=test")
        assert status == 202
        asked = await server.event("drain_requested", draining=True)
        assert (asked["instance"], asked["who"], asked["why"]) == ("a100-0", "me", "test")

        async def health() -> str:
            plan = await server.get_json("/debug/plan")
            return plan["models"][0]["tiers"][0]["instances"][0]["health"]

        async with asyncio.timeout(PATIENCE_S):
            while await health() != "draining":
                await asyncio.sleep(0.01)
            while not any(each.drained for each in (await agent.ack()).taken):
                pass
        await server.post("/undrain/a100-0")
        async with asyncio.timeout(PATIENCE_S):
            while await health() != "healthy":
                await asyncio.sleep(0.01)


async def test_an_operators_drain_survives_a_crash(config, tmp_path):
    state = tmp_path / "state"
    async with running_server(config, state, ["--grace-s", "0"]) as server:
        await server.event("server_warm")
        assert (await server.post("/drain/l4-0"))[0] == 202
        async with asyncio.timeout(PATIENCE_S):
            while '"state":"draining"' not in _read(state):
                await asyncio.sleep(0.05)
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
    async with running_server(config, state, ["--grace-s", "60"]) as server:
        await server.event("server_warm", cause="restored")
        plan = await server.get_json("/debug/plan")
        (fallback,) = plan["models"][0]["tiers"][1]["instances"]
        assert (fallback["id"], fallback["health"]) == ("l4-0", "draining")


def _read(state: Path) -> str:
    file = state / "plan.json"
    return file.read_text() if file.exists() else ""


async def test_authenticated_agents_register_their_instances_which_survive_a_restart(tmp_path):
    config, token = tmp_path / "config.yaml", tmp_path / "token"
    config.write_text(DISCOVERING)
    token.write_text(TOKEN)
    flags = ["--grace-s", "0", "--agents-token-file", str(token)]
    owned = pb.OwnedInstance(
        name="n1", address="10.0.0.9:80", model="chat", tier="primary", capacity=8
    )
    async with running_server(config, tmp_path / "state", flags) as server:
        async with connected_agent(server.target, token="wrong") as stranger:
            assert (await stranger.refusal()).code == pb.Refusal.UNAUTHENTICATED
        async with connected_agent(server.target, token=TOKEN) as agent:
            await agent.greet(owned)
            await agent.report("n1")
            await server.event("instances_registered", instances=["n1"])
            await agent.report("n1")

            async def known() -> bool:
                fleet = await server.get_json("/debug/fleet")
                return [(i["instance"], i["address"]) for i in fleet["instances"]] == [
                    ("n1", "10.0.0.9:80")
                ]

            async with asyncio.timeout(PATIENCE_S):
                while not await known():
                    await asyncio.sleep(0.01)
            snapshot = await server.get_json("/debug/snapshot?capability=composite")
            assert "10.0.0.9" in json.dumps(snapshot)
    async with running_server(config, tmp_path / "state", flags) as server:
        fleet = await server.get_json("/debug/fleet")
        assert [each["instance"] for each in fleet["instances"]] == ["n1"]


async def test_a_proxy_without_composite_clusters_gets_resources_of_its_own(config, tmp_path):
    method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
    request = DiscoveryRequest(type_url=CLUSTER)
    request.node.id = "old-envoy"
    request.node.user_agent_name = "envoy"
    async with (
        running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server,
        grpc.aio.insecure_channel(server.target) as channel,
    ):
        call = channel.stream_stream(method)()
        await call.write(request.SerializeToString())
        body = await asyncio.wait_for(call.read(), PATIENCE_S)
        names = {Cluster.FromString(each.value).name for each in resources_of(body)}
        assert "chat/primary" in names
        assert {"composite", "aggregate"} == set(await server.get_json("/debug/snapshot"))
        (proxy,) = await server.get_json("/debug/syncz")
        assert proxy["proxy"]["id"] == "old-envoy"
        assert await server.metric("fleet_proxies_connected") == 1
        # As after a connection that nobody has given up yet.
        again = channel.stream_stream(method)()
        await again.write(request.SerializeToString())
        await asyncio.wait_for(again.read(), PATIENCE_S)
        assert await server.metric("fleet_xds_open_streams") == 2
        assert await server.metric("fleet_proxies_connected") == 1
        again.cancel()
        call.cancel()
        nameless = channel.stream_stream(method)()
        await nameless.write(DiscoveryRequest(type_url=CLUSTER).SerializeToString())
        assert await nameless.code() is grpc.StatusCode.INVALID_ARGUMENT
        refused = await server.event("xds_stream_refused", level="info")
        assert refused["peer"].startswith("ipv4:127.0.0.1:")
        assert "node is missing" in refused["reason"]


def resources_of(body):
    return DiscoveryResponse.FromString(body).resources


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("{half", "is not JSON", id="broken"),
        pytest.param('{"format": 1, "brain": {"x": 1}, "registered": []}', "", id="nonsense"),
    ],
)
async def test_a_state_file_that_cannot_be_used_costs_a_warning(config, tmp_path, content, reason):
    state = tmp_path / "state"
    state.mkdir()
    (state / "plan.json").write_text(content)
    async with running_server(config, state, ["--grace-s", "0"]) as server:
        warned = await server.event("state_unusable")
        assert reason in warned["reason"]
        await server.event("server_warm")
        assert await server.stop() == 0
    assert json.loads((state / "plan.json").read_text())["brain"]


async def test_a_state_directory_that_cannot_be_written_stops_nothing(config, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    async with running_server(config, blocked / "state", ["--grace-s", "0"]) as server:
        await server.event("state_write_failed")
        names = [each["event"] for each in server.events]
        assert names.index("state_write_failed") < names.index("server_started"), "told at start"
        assert (await server.get("/readyz"))[0] == 200
        assert await server.metric("fleet_state_writes_total") >= 1


async def test_hanging_up_reloads_and_a_missing_file_keeps_the_last_good(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        server.hang_up()
        await server.event("config_reloaded", changed=[])
        config.unlink()
        refused = await server.event("config_refused")
        assert "No such file" in refused["problems"][0]
        assert (await server.get("/readyz"))[0] == 200
        assert await server.metric("fleet_config_valid") == 0
        unreadable = DESIGN.replace("status: 200", "status: 503")
        config.write_text(unreadable.replace("high: 0.80", "high: 0.7"))
        doubted = await server.event("config_doubted")
        assert "retry_after_s: (missing)" in doubted["doubts"][0]
        status = "models.chat.tiers.static.answer.status: 200 -> 503"
        await server.event("config_reloaded", changed=[status, "policy.kv.high: 0.8 -> 0.7"])
        assert await server.metric("fleet_config_valid") == 1
        config.write_text(DESIGN + "server: {grace_s: 7}\n")
        await server.event("server_settings_changed")


async def test_discovery_without_a_token_is_refused_also_at_reload(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        config.write_text(DISCOVERING)
        refused = await server.event("config_refused")
        assert refused["problems"][0].startswith(
            "server.agents_token_file: (missing): expected a token"
        )


async def test_sigterm_ends_the_server_in_order(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        await server.event("server_warm")
        async with connected_agent(server.target) as agent:
            await agent.greet(*INSTANCES)
            assert await server.stop() == 0
        assert server.named("server_stopped")
        assert "Traceback" not in server.text
    assert (tmp_path / "state" / "plan.json").exists()


def refused_start(config, tmp_path, *flags: str) -> str:
    """Return what a server says that cannot start."""
    done = subprocess.run(
        command(config, tmp_path / "state", *flags),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, "one line, and none of gRPC's"
    return done.stderr


@pytest.mark.parametrize("purpose", ["xDS", "admin"])
def test_a_port_in_use_is_one_clear_sentence_and_exit_code_1(config, tmp_path, purpose):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flag = "--xds-listen" if purpose == "xDS" else "--admin-listen"
        assert refused_start(config, tmp_path, flag, address) == (
            f"xds-server: cannot listen on {address} for {purpose}: Address already in use "
            f"(choose another with {flag})\n"
        )


def test_an_address_of_another_host_is_told_as_what_it_is(config, tmp_path):
    address = "192.0.2.1:18000"  # RFC 5737: of documentation, and nobody's
    text = refused_start(config, tmp_path, "--xds-listen", address)
    assert text.startswith(
        f"xds-server: cannot listen on {address} for xDS: Cannot assign requested address"
    )
