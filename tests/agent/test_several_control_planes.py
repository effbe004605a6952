"""One agent and several control planes: each hears everything, and none waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time

import aiohttp

from sidecar_agent import drain
from sidecar_agent.admin import serving
from sidecar_agent.agent import Agent
from sidecar_agent.settings import Settings
from tests.fakes.engine_pages import EnginePages, page
from tests.fakes.telemetry_server import TelemetryServer
from tests.fakes.waiting import PATIENCE_S, until
from tests.fakes.xds_process import ROOT, running_server

IDLE = page("vllm-0.32.0-after.prom")
NAME = "a100-0"


@contextlib.asynccontextmanager
async def agent_of(engine, *addresses):
    """Run an agent; yield it with a way to ask its pages."""
    settings = Settings.model_validate(
        {
            "node": "host",
            "admin": "127.0.0.1:0",
            "control_plane": {"address": ",".join(addresses)},
            "scrape": {"interval_s": 0.05, "deadline_s": 0.5},
            "instances": [{"name": NAME, "url": engine.url}],
        }
    )
    agent = Agent(settings, gpu=None, epoch=1, clock=time.monotonic, rng=random.Random(1))
    task = asyncio.create_task(agent.run())
    try:
        async with serving(agent, settings.admin) as admin, aiohttp.ClientSession() as http:

            async def ask(path):
                async with http.get(f"http://{admin}{path}") as answer:
                    return answer.status, await answer.text()

            yield agent, admin, ask
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_every_control_plane_hears_every_sample():
    async with (
        EnginePages({"/metrics": IDLE}) as engine,
        TelemetryServer(interval_ms=50) as one,
        TelemetryServer(interval_ms=50) as two,
        agent_of(engine, one.address, two.address),
    ):
        await until(lambda: len(one.samples) > 3 and len(two.samples) > 3)
        assert one.streams[0].hello == two.streams[0].hello


async def test_one_that_goes_away_delays_nothing_and_is_told_everything_again():
    async with (
        EnginePages({"/metrics": IDLE}) as engine,
        TelemetryServer(interval_ms=50) as one,
        TelemetryServer(interval_ms=50) as two,
        agent_of(engine, one.address, two.address) as (_, _, ask),
    ):
        await until(lambda: one.samples and two.samples)
        await one.stop()
        heard = len(two.samples)
        await until(lambda: len(two.samples) > heard + 5)

        async def is_ready():
            return (await ask("/readyz"))[0] == 200

        await until(is_ready, "readiness: the other one decides")
        _, text = await ask("/metrics")
        assert f'fleet_agent_connected{{control_plane="{one.address}"}} 0.0' in text
        assert f'fleet_agent_connected{{control_plane="{two.address}"}} 1.0' in text
        heard = len(one.samples)
        await one.start()
        await until(lambda: len(one.samples) > heard)
        assert len(two.streams) == 1, "and its stream never knew"


async def test_it_is_not_ready_while_none_hears_it():
    async with EnginePages({"/metrics": IDLE}) as engine, TelemetryServer() as one:
        await one.stop()
        async with agent_of(engine, one.address, "127.0.0.1:9") as (agent, _, ask):
            await until(
                lambda: all("no connection" in each.status.detail for each in agent.uplinks)
            )
            status, text = await ask("/readyz")
            reasons = json.loads(text)["reasons"]
    assert status == 503
    assert [each.split(": ")[0] for each in reasons if "no connection" in each] == [
        f"control plane {one.address}",
        "control plane 127.0.0.1:9",
    ]


async def test_a_drain_waits_for_all_that_are_connected_and_for_none_that_is_away():
    async with (
        EnginePages({"/metrics": IDLE}) as engine,
        TelemetryServer(interval_ms=50) as one,
        TelemetryServer(interval_ms=50) as two,
        agent_of(engine, one.address, two.address) as (agent, admin, ask),
    ):
        said = []
        await until(lambda: one.samples and two.samples)
        one.drained.add(NAME)
        agent.drain(NAME, draining=True)

        async def confirmed():
            planes = json.loads((await ask(f"/instances/{NAME}"))[1])["control_planes"]
            return planes[0]["drained"]

        await until(confirmed)
        code = await drain.drain(admin=admin, instance=NAME, timeout_s=1.0, say=said.append)
        assert code == drain.EXIT_UNCONFIRMED
        planes = json.loads((await ask(f"/instances/{NAME}"))[1])["control_planes"]
        assert [each["drained"] for each in planes] == [True, False]
        await two.stop()
        await until(lambda: not agent.uplinks[1].status.connected)
        code = await drain.drain(admin=admin, instance=NAME, timeout_s=PATIENCE_S, say=said.append)
        assert code == drain.EXIT_DRAINED


async def test_two_real_control_planes_take_a_dead_engine_out_each_by_itself(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text((ROOT / "tests/config/design.yaml").read_text())
    flags = ["--grace-s", "0"]
    async with (
        EnginePages({"/metrics": IDLE}) as engine,
        running_server(config, tmp_path / "one", flags) as one,
        running_server(config, tmp_path / "two", flags) as two,
        agent_of(engine, one.target, two.target) as (agent, _, _),
    ):
        await until(lambda: all(each.status.taken for each in agent.uplinks))
        await engine.stop()
        for server in (one, two):
            await server.event("instance_down", instance=NAME)
