"""A real agent that asks for tokens: an idle engine that hangs is found, a full one is left alone."""

from __future__ import annotations

import asyncio
import json
import random
import time

import pytest

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent.agent import Agent
from sidecar_agent.engine import probe
from sidecar_agent.engine.facts import EngineState, TokenResult
from sidecar_agent.engine.token_request import token_session
from sidecar_agent.metrics import Metrics
from sidecar_agent.settings import Settings
from sidecar_agent.status import describe
from tests.fakes.engine_pages import page
from tests.fakes.envoy import eventually
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.telemetry_server import TelemetryServer

IDLE = page("vllm-0.32.0-after.prom")
FULL = page("vllm-0.32.0-load_waiting.prom")


class Lab:
    """One agent and one engine; scrapes and requests happen when the test says so."""

    def __init__(self, made, engine):
        self.agent = made
        self.engine = engine
        self.instance = made.instances["a"]
        self.sent = []
        made.uplinks[0].offer = self.sent.append

    async def round(self):
        await self.agent.scrape(self.instance)
        asking = asyncio.create_task(self.agent.ask_token(self.instance))
        if self.engine.mode == "hang":
            await self.agent.scrape(self.instance)
        await asking
        self.agent._publish(self.instance)
        return self.sent[-1].engine


@pytest.fixture
async def lab():
    pages = {"/metrics": IDLE, "/v1/models": json.dumps({"data": [{"id": "tiny"}]})}
    engine = ScriptedEngine("tiny", pages=pages)
    async with scripted_engine(engine), probe.session() as http, token_session() as tokens:
        settings = Settings.model_validate(
            {
                "instances": [{"name": "a", "url": f"http://127.0.0.1:{engine.port}"}],
                "token_probe": {"enabled": True, "deadline_s": 0.15},
            }
        )
        made = Agent(settings, gpu=None, epoch=1, clock=time.monotonic, rng=random.Random(1))
        made.open(http, tokens)
        yield Lab(made, engine)


async def test_an_idle_engine_that_hangs_behind_green_pages_is_told_and_a_token_ends_it(lab):
    assert (await lab.round()).token_probe.result is TokenResult.OK
    lab.engine.mode = "hang"
    said = [(await lab.round()) for _ in range(3)]
    assert [each.state for each in said] == [EngineState.UP, EngineState.UP, EngineState.HUNG]
    assert [each.token_probe.row for each in said] == [1, 2, 3]
    assert said[-1].detail == "asked for one token: none within 0.15 s, 3 times in a row"
    lab.engine.mode = "ok"
    assert (await lab.round()).state is EngineState.UP


async def test_an_engine_with_a_full_queue_stays_up_however_long_a_token_takes(lab):
    lab.engine.pages["/metrics"] = FULL
    for mode in ("hang", "503", "429"):
        lab.engine.mode = mode
        for _ in range(4):
            facts = await lab.round()
            assert facts.state is EngineState.UP, mode
            assert facts.token_probe.result is TokenResult.BUSY


async def test_an_engine_whose_generation_fails_behind_green_pages_is_told(lab):
    lab.engine.mode = "500"
    said = [(await lab.round()) for _ in range(3)]
    assert said[-1].state is EngineState.DOWN
    assert said[-1].detail == "asked for one token: status 500, 3 times in a row"


async def test_a_draining_instance_is_not_asked_and_what_it_said_before_is_forgotten(lab):
    lab.engine.mode = "500"
    for _ in range(3):
        await lab.round()
    asked = lab.engine.requests
    lab.agent.drain("a", draining=True)
    facts = await lab.round()
    assert (facts.state, facts.token_probe) == (EngineState.UP, None)
    assert lab.engine.requests == asked


async def test_an_engine_that_sleeps_is_not_woken(lab):
    lab.engine.pages["/metrics"] = IDLE + (
        "# TYPE vllm:engine_sleep_state gauge\n"
        'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 0.0\n'
    )
    facts = await lab.round()
    assert facts.state is EngineState.SLEEPING
    assert lab.engine.requests == 0


async def test_a_page_that_cannot_be_read_forgets_nothing(lab):
    lab.engine.mode = "500"
    for _ in range(3):
        await lab.round()
    metrics = lab.engine.pages.pop("/metrics")
    await lab.agent.scrape(lab.instance)
    await lab.agent.ask_token(lab.instance)
    lab.engine.pages["/metrics"] = metrics
    assert (await lab.round()).state is EngineState.DOWN


async def test_the_running_agent_asks_by_itself_and_the_control_plane_hears_of_it():
    pages = {"/metrics": IDLE}
    engine = ScriptedEngine("tiny", pages=pages)
    async with TelemetryServer(interval_ms=50) as server, scripted_engine(engine):
        url = f"http://127.0.0.1:{engine.port}"
        settings = Settings.model_validate(
            {
                "instances": [
                    {"name": "a", "url": url, "probe_url": f"{url}/", "probe_model": "tiny"}
                ],
                "token_probe": {"enabled": True, "interval_s": 0.1, "deadline_s": 0.1},
                "scrape": {"interval_s": 0.05},
                "control_plane": {"address": server.address},
            }
        )
        made = Agent(settings, gpu=None, epoch=1, clock=time.monotonic, rng=random.Random(1))
        running = asyncio.create_task(made.run())

        async def heard():
            return server.samples and server.samples[-1].engine.token_probe.result

        async def heard_ok():
            return await heard() == pb.TOKEN_RESULT_OK

        async def heard_failed():
            return await heard() == pb.TOKEN_RESULT_FAILED

        try:
            await eventually(heard_ok, what="a token")
            engine.mode = "500"
            await eventually(heard_failed, what="a failure")
            assert describe(made, made.instances["a"], time.monotonic())["token_probe"] == "failed"
            page_text = Metrics(made).page().decode()
            assert 'fleet_agent_token_probes_total{engine_instance="a",reply="given"}' in page_text
            assert 'fleet_agent_token_probes_total{engine_instance="a",reply="broken"}' in page_text
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_without_the_switch_nobody_is_asked():
    async with probe.session() as http, token_session() as tokens:
        settings = Settings.model_validate(
            {"instances": [{"name": "a", "url": "http://127.0.0.1:9"}]}
        )
        made = Agent(settings, gpu=None, epoch=1, clock=time.monotonic, rng=random.Random(1))
        made.open(http, tokens)
        assert made.instances["a"].token_request is None
