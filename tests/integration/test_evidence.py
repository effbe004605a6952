"""What a real Envoy reports, and what the control plane makes of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yaml

from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.xds_process import XdsProcess, running_server
from xds_server.resources.bootstrap import bootstrap

pytestmark = pytest.mark.envoy


def document(big: ScriptedEngine, small: ScriptedEngine, **policy: Any) -> dict[str, Any]:
    def listed(name: str, engine: ScriptedEngine) -> list[dict[str, Any]]:
        return [{"name": name, "address": f"127.0.0.1:{engine.port}", "capacity": 10}]

    return {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [
            {
                "name": "chat",
                "tiers": [
                    {"name": "primary", "serves": "big", "instances": listed("a", big)},
                    {"name": "fallback", "serves": "small", "instances": listed("b", small)},
                    {"name": "static", "answer": {"json": {"busy": True}}},
                ],
            }
        ],
        "policy": policy,
    }


class Lab:
    """Two engines, a control plane and an Envoy."""

    def __init__(self, big: ScriptedEngine, small: ScriptedEngine) -> None:
        self.big = big
        self.small = small
        self.server: XdsProcess
        self.session: aiohttp.ClientSession
        self.url = ""

    async def ask(self, **body: Any) -> aiohttp.ClientResponse:
        asked = {"model": "chat", "messages": [], **body}
        async with self.session.post(self.url, json=asked) as answer:
            await answer.read()
            return answer


@asynccontextmanager
async def lab(tmp_path, **policy: Any):
    config = tmp_path / "config.yaml"
    async with (
        scripted_engine(ScriptedEngine(model="big")) as big,
        scripted_engine(ScriptedEngine(model="small")) as small,
        aiohttp.ClientSession() as session,
    ):
        made = Lab(big, small)
        made.session = session
        config.write_text(yaml.safe_dump(document(big, small, **policy)))
        async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
            made.server = server
            start = bootstrap(
                node_id="edge-1", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
            )
            async with running_envoy(start, tmp_path / "envoy") as envoy:
                port = await envoy.listener_port("llm")
                made.url = f"http://127.0.0.1:{port}/v1/chat/completions"
                yield made


async def test_a_request_that_envoy_logs_is_seen_in_the_metrics(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.ask()).status == 200

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") == 1

        await eventually(seen, what="the request in /metrics", timeout_s=5)
        _, text = await made.server.get("/metrics")
        assert 'fleet_requests_total{class="",model="chat",outcome="ok",tier="primary"} 1.0' in text
        assert 'fleet_degraded_request_ratio{class="",model="chat"} 0.0' in text
        assert 'fleet_retry_amplification_ratio{class="",model="chat"} 1.0' in text
        assert await made.server.metric("fleet_evidence_refused_total") == 0
