"""What rules, panels and documents name is there: in the tables, and in a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.rpc.status_pb2 import Status

import sidecar_agent.metric_table as of_agent
import xds_server.observability.metric_table as of_server
from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.prometheus import (
    ROOT,
    RealPrometheus,
    labels_of,
    metrics_of,
    running_prometheus,
)
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import XdsProcess, running_server
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.snapshot import CLUSTER, PUSH_ORDER

RULES = ROOT / "deploy/prometheus/rules.yaml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
OF_PROMETHEUS = {"instance", "job", "le"}
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


def labels_by_series() -> dict[str, set[str]]:
    """Return the labels of every series that the two programs expose."""
    found: dict[str, set[str]] = {}
    for rows in (of_server.METRICS, of_agent.METRICS):
        for name, row in rows.items():
            ends = ("_bucket", "_sum", "_count") if row.kind == "histogram" else ("",)
            for end in ends:
                found.setdefault(name + end, set()).update(row.labels)
    return found


SERIES = labels_by_series()
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
EXPRESSIONS = {
    **{
        f"alert {rule['alert']}": rule["expr"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    },
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    },
}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_reads_series_and_labels_that_the_programs_have(expression):
    metrics = metrics_of(expression)
    assert metrics
    assert metrics <= set(SERIES)
    known = set().union(*(SERIES[name] for name in metrics)) | OF_PROMETHEUS
    assert labels_of(expression) <= known


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_a_page_names_metrics_that_are_there(page):
    named = set(re.findall(r"`(fleet_[a-z0-9_]+)[`{]", page.read_text()))
    families = {*of_server.METRICS, *of_agent.METRICS}
    assert named - families - set(SERIES) - MODULES == set()


MODULES = {"fleet_metrics", "fleet_notify", "fleet_protos"}
"""Packages, not metrics."""


def test_panels_have_a_description_a_unit_and_a_place_of_their_own():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_dashboard_shows_what_an_operator_must_see():
    shown = set().union(*(metrics_of(target["expr"]) for p in PANELS for target in p["targets"]))
    assert shown >= {
        "fleet_instance_weight",
        "fleet_tier_pressure_ratio",
        "fleet_instance_pressure_ratio",
        "fleet_tier_level",
        "fleet_requests_total",
        "fleet_degraded_request_ratio",
        "fleet_static_answer_ratio",
        "fleet_retry_amplification_ratio",
        "fleet_instance_telemetry_age_seconds",
        "fleet_xds_proxies",
        "fleet_xds_nacks_total",
        "fleet_xds_ack_seconds_bucket",
    }


def test_nacks_are_counted_from_zero_in_every_type_that_is_served():
    assert {name for (name,) in of_server.TYPES} == {url.rpartition(".")[2] for url in PUSH_ORDER}
    for rows in (of_server.METRICS, of_agent.METRICS):
        for name, row in rows.items():
            assert all(len(labels) == len(row.labels) for labels in getattr(row, "always", ())), (
                name
            )


# A whole fleet, scraped by a real Prometheus.

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 1
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.4
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{model_name="m"} 0
"""
NEEDS_A_MESH = {"Arrival in the mesh", "Not followed", "Connections to istiod"}
NEEDS_GPUS = {"GPU memory", "Memory of GPUs", "GPUs at work", "Health of GPUs"}


def configuration(big: ScriptedEngine, small: ScriptedEngine) -> dict[str, Any]:
    def listed(name: str, engine: ScriptedEngine) -> list[dict[str, Any]]:
        return [{"name": name, "address": f"127.0.0.1:{engine.port}", "capacity": 10}]

    tiers = [
        {"name": "primary", "serves": "big", "instances": listed("a", big)},
        {"name": "fallback", "serves": "small", "instances": listed("b", small)},
        {"name": "static", "answer": {"json": {"busy": True}}},
    ]
    listener = {"address": "127.0.0.1", "port": 0}
    return {"listener": listener, "models": [{"name": "chat", "tiers": tiers}]}


@asynccontextmanager
async def running_agent(config: dict[str, Any], path: Path) -> AsyncIterator[str]:
    """Run an agent and yield host:port of its pages."""
    path.write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar_agent", "run", "--config", str(path)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def follow() -> None:
        async for line in process.stderr:
            if b'"agent_started"' in line and not started.done():
                started.set_result(json.loads(line)["admin"])

    following = asyncio.create_task(follow(), name="agent-log")
    try:
        yield await asyncio.wait_for(started, PATIENCE_S)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        await following


@dataclass(frozen=True)
class Lab:
    """A control plane, an agent, two engines, and a Prometheus that scrapes the first two."""

    server: XdsProcess
    prometheus: RealPrometheus
    engines: tuple[ScriptedEngine, ...]
    stack: AsyncExitStack


@asynccontextmanager
async def fleet(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        pages = {"/metrics": PAGE}
        big = await stack.enter_async_context(scripted_engine(ScriptedEngine("big", pages=pages)))
        small = await stack.enter_async_context(
            scripted_engine(ScriptedEngine("small", pages=pages))
        )
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(configuration(big, small)))
        # On a busy machine the agent may take longer to start than the default grace.
        flags = ["--grace-s", "60"]
        server = await stack.enter_async_context(running_server(config, tmp_path / "state", flags))
        agent = {
            "node": "host-1",
            "control_plane": {"address": server.target},
            "instances": [
                {"name": name, "url": f"http://127.0.0.1:{each.port}", "engine": "vllm"}
                for name, each in (("a", big), ("b", small))
            ],
            "scrape": {"interval_s": 0.2, "deadline_s": 0.2},
            "send_interval_s": 0.2,
            "gpu": {"backend": "none"},
            "admin": "127.0.0.1:0",
            "log": {"format": "json"},
        }
        admin = await stack.enter_async_context(running_agent(agent, tmp_path / "agent.yaml"))
        await server.event("server_warm", timeout_s=60, cause="telemetry")
        targets = {"gpu-xds": server.admin_url.removeprefix("http://"), "gpu-xds-agent": admin}
        prometheus = await stack.enter_async_context(
            running_prometheus(targets, RULES, tmp_path / "prometheus")
        )

        async def scraped() -> bool:
            return len(await prometheus.query("up == 1")) == 2

        await eventually(scraped, what="both scraped")
        yield Lab(server, prometheus, (big, small), stack)


class Client:
    """Asks through a real Envoy."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def ask(self) -> bool:
        """Send one request and return whether a model answered it."""
        async with self.session.post(self.url, json={"model": "chat", "messages": []}) as answer:
            return "choices" in await answer.json()


async def client(server: XdsProcess, stack: AsyncExitStack, path: Path) -> Client:
    start = bootstrap(
        node_id="edge-1", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
    )
    envoy = await stack.enter_async_context(running_envoy(start, path))
    url = f"http://127.0.0.1:{await envoy.listener_port('llm')}/v1/chat/completions"
    return Client(url, await stack.enter_async_context(aiohttp.ClientSession()))


def concrete(expression: str) -> str:
    """Put in what Grafana does."""
    return expression.replace("$__rate_interval", "10s").replace('"$model"', '".*"')


@pytest.mark.envoy
@pytest.mark.prometheus
async def test_a_real_prometheus_has_everything_that_rules_and_panels_read(tmp_path):
    async with fleet(tmp_path) as lab:
        prometheus = lab.prometheus
        # What it read of the pages is what the tables say.
        for job, rows in (("gpu-xds", of_server.METRICS), ("gpu-xds-agent", of_agent.METRICS)):
            found = await prometheus.api(
                "targets/metadata", match_target=f'{{job="{job}"}}', limit="1000"
            )
            told = {each["metric"]: (each["type"], each["help"]) for each in found}
            for name, row in rows.items():
                assert told[name] == (row.kind, row.help), name
            assert set(told) == set(rows)
        # No label of ours is one of Prometheus' own: it would rename it.
        for label in ("exported_instance", "exported_job"):
            assert await prometheus.query(f'{{__name__=~"fleet_.+", {label}!=""}}') == []
        # It evaluates every rule.
        rules = await prometheus.api("rules")

        async def evaluated() -> bool:
            nonlocal rules
            rules = await prometheus.api("rules")
            return all(r["health"] == "ok" for g in rules["groups"] for r in g["rules"])

        await eventually(evaluated, what="all rules evaluated")
        # Every panel of the dashboard shows something, when models answer and when none does.
        asking = await client(lab.server, lab.stack, tmp_path / "envoy")

        async def panels_without_data() -> set[str]:
            await asking.ask()
            return {
                panel["title"]
                for panel in PANELS
                if not [
                    series
                    for target in panel["targets"]
                    for series in await prometheus.query(concrete(target["expr"]))
                ]
            }

        async def lacking(*titles: str) -> bool:
            left = await panels_without_data()
            assert left <= NEEDS_GPUS | NEEDS_A_MESH | set(titles), left
            return True

        await eventually(
            lambda: lacking("Static answers"), what="data in every panel", timeout_s=30
        )
        for engine in lab.engines:
            engine.mode = "503"
        await eventually(lambda: lacking("Whole answers"), what="static answers")


@pytest.mark.prometheus
async def test_a_nack_raises_an_alert_in_a_real_prometheus(tmp_path):
    async with fleet(tmp_path) as lab:
        server, prometheus = lab.server, lab.prometheus

        async def alerts() -> dict[str, str]:
            data = await prometheus.api("alerts")
            return {each["labels"]["alertname"]: each["state"] for each in data["alerts"]}

        async def seen() -> bool:
            return bool(await prometheus.query('fleet_xds_nacks_total{type="Cluster"} == 0'))

        await eventually(seen, what="the counter at zero")
        assert "FleetXdsNack" not in await alerts()
        async with grpc.aio.insecure_channel(server.target) as channel:
            stream = channel.stream_stream(
                ADS,
                request_serializer=DiscoveryRequest.SerializeToString,
                response_deserializer=DiscoveryResponse.FromString,
            )()
            request = DiscoveryRequest(type_url=CLUSTER)
            request.node.id, request.node.cluster = "edge-1", "test"
            await stream.write(request)
            answer = await asyncio.wait_for(stream.read(), PATIENCE_S)
            refusal = DiscoveryRequest(
                type_url=CLUSTER, response_nonce=answer.nonce, error_detail=Status(message="no")
            )
            await stream.write(refusal)

            async def fired() -> bool:
                return (await alerts()).get("FleetXdsNack") == "firing"

            await eventually(fired, what="the alert")
            assert (await alerts())["FleetProxiesRefuse"] == "pending"
            stream.cancel()
