"""Telemetry without agents: engines report in response headers, proxies pass it on, the plan follows."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
import yaml

from tests.fakes.chain import chain_lab
from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import running_server
from xds_server.core.model import Telemetry
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

ASK = "endpoint-load-metrics-format"
REPORT = "endpoint-load-metrics"


def text(*, kv: float, waiting: float) -> str:
    """What vLLM 0.32 answers."""
    return (
        f"TEXT named_metrics.num_requests_waiting={waiting}, named_metrics.kv_cache_usage_perc={kv}"
    )


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
async def test_engines_are_asked_for_reports_and_clients_never_see_one(tmp_path, capability):
    tiers = [
        [ScriptedEngine("llama-3-70b", headers={REPORT: text(kv=0.5, waiting=1)})],
        [ScriptedEngine("llama-3-8b", headers={REPORT: text(kv=0.1, waiting=0)})],
    ]
    async with chain_lab(
        tmp_path, tiers=tiers, telemetry=Telemetry.ORCA, capability=capability
    ) as lab:
        for mode in ("ok", "500"):
            lab.big.mode = mode
            answer = await lab.ask(headers={ASK: "BIN"})
            assert answer.status == 200
            assert not [name for name in answer.headers if name.startswith(REPORT)]
            asked = (lab.big if mode == "ok" else lab.small).last_headers
            assert asked.getall(ASK) == ["TEXT"], "a client's own wish is overruled"
        await lab.assert_all_accepted()


async def test_where_nobody_wants_reports_nothing_is_added_and_nothing_taken_away(tmp_path):
    tiers = [[ScriptedEngine("llama-3-70b", headers={REPORT: "TEXT x=1"})], []]
    async with chain_lab(tmp_path, tiers=tiers) as lab:
        answer = await lab.ask()
        assert ASK not in lab.big.last_headers
        assert answer.headers[REPORT] == "TEXT x=1"


class Fleet:
    def __init__(self, engines, server, session, url):
        self.engines = engines
        self.server = server
        self.session = session
        self.url = url

    async def ask(self):
        async with self.session.post(self.url, json={"model": "chat", "messages": []}) as answer:
            await answer.read()
            return answer.headers.get("x-engine", "static")

    async def explained(self, name):
        return await self.server.get_json(f"/debug/explain?subject={name}")

    async def asking_until(self, condition, *, what, timeout_s=PATIENCE_S):
        """Keep requests coming, as reports need them, until a condition holds."""

        async def probe():
            await asyncio.gather(*(self.ask() for _ in range(4)))
            return await condition()

        return await eventually(probe, what=what, timeout_s=timeout_s)


@asynccontextmanager
async def fleet(tmp_path, *, limit=None):
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(
                scripted_engine(
                    ScriptedEngine(
                        "m", headers={"x-engine": name, REPORT: text(kv=kv, waiting=waiting)}
                    )
                )
            )
            for name, kv, waiting in (("a", 0.9, 2.0), ("b", 0.1, 0.0))
        }
        config = tmp_path / "config.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "listener": {"address": "127.0.0.1", "port": 0},
                    "models": [
                        {
                            "name": "chat",
                            "telemetry": "orca",
                            "tiers": [
                                {
                                    "name": "primary",
                                    "limit": limit or {},
                                    "instances": [
                                        {
                                            "name": name,
                                            "address": f"127.0.0.1:{each.port}",
                                            "capacity": 10,
                                        }
                                        for name, each in engines.items()
                                    ],
                                },
                                {"name": "static", "answer": {"json": {"busy": True}}},
                            ],
                        }
                    ],
                }
            )
        )
        server = await stack.enter_async_context(
            running_server(config, tmp_path / "state", ("--grace-s", "0"))
        )
        start = bootstrap(
            node_id="edge", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
        )
        envoy = await stack.enter_async_context(running_envoy(start, tmp_path / "envoy"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        port = await envoy.listener_port("llm")
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        yield Fleet(engines, server, session, url)
        assert await envoy.rejected() == {}


@pytest.mark.parametrize(
    "limit", [None, {"concurrency": 100, "requests_per_second": 10000}], ids=["plain", "gated"]
)
async def test_without_any_agent_reports_of_engines_set_the_weights(tmp_path, limit):
    async with fleet(tmp_path, limit=limit) as one:

        async def known():
            a, b = await one.explained("a"), await one.explained("b")
            return a["pressure"] and a["telemetry"] == b["telemetry"] == "fresh" and (a, b)

        a, b = await one.asking_until(known, what="both instances known")
        assert a["pressure"] == pytest.approx(0.9 + 2.0 / 2.5)
        assert b["pressure"] == pytest.approx(0.1)

        async def balanced():
            a, b = await one.explained("a"), await one.explained("b")
            return a["weight"] < 0.5 * b["weight"]

        await one.asking_until(balanced, what="the busy engine getting less")
        assert await one.server.metric("fleet_engine_reports_total") > 0
        assert "note" not in a


async def test_an_agent_that_dies_is_told_and_reports_take_over(tmp_path):
    async with fleet(tmp_path) as one:
        async with connected_agent(one.server.target) as agent:
            await agent.hello(instances=["a"])
            await agent.report("a", kv_ratio=0.9, waiting=2.0, restarts=3)

            async def heard():
                return (await one.explained("a"))["telemetry"] == "fresh"

            await one.asking_until(heard, what="the agent heard")
        event = asyncio.create_task(one.server.event("agent_silent", instance="a"))

        async def told():
            return event.done()

        await one.asking_until(told, what="the event")
        assert event.result()["after"] == "silent"

        async def taken_over():
            answer = await one.explained("a")
            return answer["telemetry"] == "fresh" and answer.get("note")

        note = await one.asking_until(taken_over, what="reports in place of the agent")
        assert note.startswith("Its agent is silent: nothing for ")
        assert not one.server.named("instance_quarantined"), "restarts did not start anew"
        _, page = await one.server.get("/metrics")
        assert (
            'fleet_agent_doubted{engine_instance="a",model="chat",standing="silent",tier="primary"} 1.0'
            in page
        )
