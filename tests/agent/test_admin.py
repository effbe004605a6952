"""The agent's own pages and the drain command, with everything real but the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time

import aiohttp

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent import drain
from sidecar_agent.admin import serving
from sidecar_agent.agent import Agent
from sidecar_agent.gpu.facts import (
    DriverState,
    Fact,
    FactStatus,
    GpuHealth,
    GpuReading,
    GpuSnapshot,
    MemoryKind,
)
from sidecar_agent.metric_table import METRICS
from sidecar_agent.settings import Settings
from tests.fakes.engine_pages import EnginePages, page
from tests.fakes.gpu_reader import scripted
from tests.fakes.ports import free_port
from tests.fakes.telemetry_server import TelemetryServer
from tests.fakes.waiting import PATIENCE_S, until

BUSY = page("vllm-0.32.0-load_waiting.prom")
IDLE = page("vllm-0.32.0-after.prom")
SILENT = page("written-lmdeploy_dp.prom").replace("lmdeploy:num_requests_running", "gone")


def gpus(health=GpuHealth.OK, driver=DriverState.OK, free=40e9):
    gpu = GpuReading(
        uuid="GPU-1",
        index=0,
        health=health,
        memory_free_bytes=Fact(FactStatus.OK, free),
    )
    return GpuSnapshot(driver=driver, read_at=time.monotonic(), gpus=(gpu,), rejected=2)


class Running:
    def __init__(self, agent, admin, http, server, engine):
        self.agent = agent
        self.admin = admin
        self.http = http
        self.server = server
        self.engine = engine
        self.said: list[str] = []

    async def call(self, method, path):
        async with self.http.request(method, f"http://{self.admin}{path}") as response:
            return response.status, await response.text()

    async def is_ready(self):
        status, text = await self.call("GET", "/readyz")
        return status == 200 and json.loads(text) == {"ready": True, "reasons": []}

    async def drain(self, name="a", timeout_s=PATIENCE_S):
        return await drain.drain(
            admin=self.admin, instance=name, timeout_s=timeout_s, say=self.said.append
        )

    async def is_drained(self):
        """Have the control plane confirm a drain."""
        self.server.drained.add("a")
        await until(lambda: self.server.samples)
        await self.call("POST", "/drain/a")

        async def confirmed():
            return json.loads((await self.call("GET", "/instances/a"))[1])["drained"]

        await until(confirmed)


@contextlib.asynccontextmanager
async def running(text=BUSY, *, worker=None, refuse=(), **instance):
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            TelemetryServer(interval_ms=50, refuse=list(refuse))
        )
        engine = await stack.enter_async_context(EnginePages({"/metrics": text}))
        settings = Settings.model_validate(
            {
                "node": "host",
                "admin": "127.0.0.1:0",
                "control_plane": {"address": server.address},
                "scrape": {"interval_s": 0.05, "deadline_s": 0.1},
                "instances": [{"name": "a", "url": engine.url, **instance}],
            }
        )
        if worker is not None:
            worker.start()
            stack.callback(worker.close)
        agent = Agent(settings, gpu=worker, epoch=1, clock=time.monotonic, rng=random.Random(1))
        task = asyncio.create_task(agent.run())
        admin = await stack.enter_async_context(serving(agent, settings.admin))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        try:
            yield Running(agent, admin, http, server, engine)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_ready_means_connected_and_something_fresh_about_every_instance():
    async with running() as one:
        await until(one.is_ready, "the agent to be ready")
        assert one.server.samples
        assert (await one.call("GET", "/healthz")) == (200, "ok\n")


async def test_not_ready_says_every_reason():
    refusal = pb.Refusal(instance="a", code=pb.Refusal.UNKNOWN_INSTANCE, reason="who?")
    async with running(refuse=[refusal]) as one:
        one.engine.status["/metrics"] = (500, "Traceback")
        await until(lambda: one.agent.instances["a"].outcomes["bad_page"] > 10)
        await until(lambda: "a" in one.agent.uplinks[0].status.refusals)
        status, text = await one.call("GET", "/readyz")
        assert status == 503
        reasons = json.loads(text)["reasons"]
        assert any("no fresh facts (status 500" in reason for reason in reasons), reasons
        assert any("refused: UNKNOWN_INSTANCE: who?" in reason for reason in reasons)
        await one.server.stop()
        await until(lambda: not one.agent.uplinks[0].status.connected)
        _, text = await one.call("GET", "/readyz")
        assert any("control plane 127.0.0.1:" in each for each in json.loads(text)["reasons"])


async def test_readiness_turns_red_when_what_is_said_gets_old():
    async with running() as one:
        await until(lambda: one.server.samples)
        one.engine.hold.clear()
        said_at = one.agent.instances["a"].said_at
        await until(lambda: time.monotonic() - said_at > 0.4)
        status, text = await one.call("GET", "/readyz")
        assert status == 503
        assert "no fresh facts (no answer" in text


async def test_an_engine_that_is_down_is_something_to_say():
    async with running() as one:
        await one.engine.stop()
        await until(
            lambda: (
                one.server.samples and one.server.samples[-1].engine.state == pb.ENGINE_STATE_DOWN
            )
        )
        await until(one.is_ready, "the agent to be ready all the same")


async def test_trap_16_a_page_without_the_engine_is_sent_as_unknown_and_is_not_ready():
    async with running("python_info 1\n") as one:
        await until(lambda: one.server.samples)
        sample = one.server.samples[-1]
        assert sample.engine.state == pb.ENGINE_STATE_UNSPECIFIED
        assert "no known engine's numbers" in sample.engine.detail
        assert not sample.engine.HasField("waiting")
        status, text = await one.call("GET", "/readyz")
        assert status == 503
        assert "a: no fresh facts (the page has no known engine's numbers" in text


async def test_instances_are_described():
    async with running() as one:
        await until(lambda: one.server.samples and one.agent.uplinks[0].status.taken)
        status, text = await one.call("GET", "/instances/a")
        described = json.loads(text)
        assert status == 200
        assert (described["state"], described["waiting"], described["running"]) == ("up", 20, 4)
        assert described["age_s"] < 20
        assert json.loads((await one.call("GET", "/instances"))[1])[0]["instance"] == "a"
        assert (await one.call("GET", "/instances/b"))[0] == 404


async def test_a_drain_is_said_at_once_even_about_an_engine_that_cannot_be_read():
    async with running() as one:
        await until(lambda: one.server.samples)
        one.engine.hold.clear()
        await until(lambda: one.agent.instances["a"].engine.facts is None)
        assert (await one.call("POST", "/drain/a"))[0] == 200
        await until(lambda: one.server.samples[-1].draining)
        last = one.server.samples[-1]
        assert last.engine.state == pb.ENGINE_STATE_UNSPECIFIED
        assert not last.engine.HasField("waiting")
        assert (await one.call("POST", "/undrain/a"))[0] == 200
        assert (await one.call("POST", "/drain/b"))[0] == 404


async def test_a_page_in_a_browser_drains_nothing():
    async with running(IDLE) as here:
        url = f"http://{here.admin}/drain/a"
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "http://evil.example", "host": "evil.example"},
            {"origin": f"http://{here.admin}"},
            {"origin": "null"},
        ):
            async with here.http.post(url, headers=headers) as answer:
                assert answer.status == 403
        async with here.http.get(f"http://{here.admin}/instances/a") as answer:
            assert not (await answer.json())["draining"]
        async with here.http.post(url) as answer:
            assert answer.status == 200


async def test_drain_ends_when_confirmed_and_idle():
    async with running(IDLE) as one:
        one.server.drained.add("a")
        await until(lambda: one.server.samples)
        assert await one.drain() == drain.EXIT_DRAINED
        assert one.said[-1] == "a: drained"
        assert await drain.undrain(admin=one.admin, instance="a", say=one.said.append) == 0
        await until(lambda: not one.server.samples[-1].draining)


async def test_drain_that_nobody_confirms_gives_up_in_time():
    async with running(IDLE) as one:
        assert await one.drain(timeout_s=0.5) == drain.EXIT_UNCONFIRMED
        assert one.said[-1] == "a: not confirmed by the control plane after 0.5 s"


async def test_drain_of_a_busy_engine_gives_up_in_time():
    async with running(BUSY) as one:
        await one.is_drained()
        assert await one.drain(timeout_s=1.0) == drain.EXIT_BUSY
        assert one.said[-1] == "a: still busy after 1 s (running 4, waiting 20)"
        assert "a: 4 running, 20 waiting" in one.said


async def test_drain_never_takes_an_unknown_queue_for_an_empty_one():
    async with running(SILENT) as one:
        await one.is_drained()
        assert await one.drain(timeout_s=1.0) == drain.EXIT_BUSY
        assert "running unknown" in one.said[-1]


async def test_drain_of_an_engine_that_is_down_is_done():
    async with running() as one:
        await one.engine.stop()
        await until(lambda: one.agent.instances["a"].engine.state == "down")
        assert await one.drain() == drain.EXIT_DRAINED
        assert one.said == ["a: the engine is down, nothing runs on it"]
        assert not one.agent.instances["a"].engine.exhausted


async def test_drain_names_the_instances_there_are():
    async with running() as one:
        assert await one.drain("b") == drain.EXIT_UNKNOWN_INSTANCE
        assert one.said == ["no instance 'b'; this agent has: a"]
        code = await drain.undrain(admin=one.admin, instance="b", say=one.said.append)
        assert code == drain.EXIT_UNKNOWN_INSTANCE


async def test_drain_without_an_agent_says_so():
    said: list[str] = []
    code = await drain.drain(admin="127.0.0.1:1", instance="a", timeout_s=5, say=said.append)
    assert (code, said[0].startswith("no agent answers at 127.0.0.1:1")) == (3, True)
    code = await drain.undrain(admin="127.0.0.1:1", instance="a", say=said.append)
    assert code == drain.EXIT_NO_AGENT


async def test_drain_survives_an_agent_that_is_started_anew():
    async with running(BUSY) as one:
        one.server.drained.add("a")
        async with serving(one.agent, f"127.0.0.1:{free_port()}") as admin:
            said: list[str] = []
            draining = asyncio.create_task(
                drain.drain(admin=admin, instance="a", timeout_s=PATIENCE_S, say=said.append)
            )
            await until(lambda: "a: 4 running, 20 waiting" in said)
        await until(lambda: any(each.startswith("no agent answers") for each in said))
        one.agent.drain("a", draining=False)
        one.engine.pages["/metrics"] = IDLE
        async with serving(one.agent, admin):
            assert await draining == drain.EXIT_DRAINED
        assert one.agent.instances["a"].draining, "it was told again"


async def test_drain_of_an_agent_that_stays_away_says_so_in_time():
    async with running(BUSY) as one:
        await one.is_drained()
        async with serving(one.agent, f"127.0.0.1:{free_port()}") as admin:
            draining = asyncio.create_task(
                drain.drain(admin=admin, instance="a", timeout_s=3.0, say=one.said.append)
            )
            await until(lambda: one.said)
        assert await draining == drain.EXIT_NO_AGENT
        assert one.said[-1].startswith("no agent answers")


async def test_a_gpu_fault_goes_out_at_once_although_the_engine_hangs():
    worker, reader = scripted(gpus())
    async with running(worker=worker, gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples)
        assert one.server.samples[0].gpu.health == pb.GPU_HEALTH_OK
        one.engine.hold.clear()
        await until(lambda: one.agent.instances["a"].engine.facts is None)
        put_at = time.monotonic()
        reader.snapshots = [gpus(health=GpuHealth.LOST)]
        await until(lambda: one.server.samples[-1].gpu.health == pb.GPU_HEALTH_LOST)
        assert one.server.streams[0].arrived[-1] - put_at < 20.0
        assert one.server.samples[-1].engine.state == pb.ENGINE_STATE_UNSPECIFIED


async def test_a_gpu_that_vanished_is_lost_and_not_absent():
    worker, _ = scripted(GpuSnapshot(driver=DriverState.OK, read_at=time.monotonic()))
    async with running(worker=worker, gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples)
        assert one.server.samples[-1].gpu.health == pb.GPU_HEALTH_LOST


async def test_a_driver_that_hangs_sends_no_numbers_and_turns_readiness_red():
    worker, _ = scripted(GpuSnapshot(driver=DriverState.STALLED, detail="no answer for 2 s"))
    async with running(worker=worker, gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples)
        assert not one.server.samples[-1].gpu.HasField("vram_ratio")
        assert one.server.samples[-1].engine.waiting == 20, "engine facts flow on"
        status, text = await one.call("GET", "/readyz")
        assert status == 503
        assert "gpu: stalled: no answer for 2 s" in text


async def test_the_agents_metrics_tell_streams_scrapes_and_the_driver():
    async with running(worker=scripted(gpus())[0], gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples and one.agent.uplinks[0].status.last_ack_at)
        status, text = await one.call("GET", "/metrics")
    assert status == 200
    for line in (
        f'fleet_agent_connected{{control_plane="{one.server.address}"}} 1.0',
        f'fleet_agent_streams_total{{control_plane="{one.server.address}"}} 1.0',
        'fleet_agent_gpu_driver{state="ok"} 1.0',
        "fleet_agent_gpu_rejected_values_total 2.0",
        'fleet_agent_engine_state{engine_instance="a",state="up"} 1.0',
        'fleet_agent_draining{engine_instance="a"} 0.0',
        f'fleet_agent_send_interval_seconds{{control_plane="{one.server.address}"}} 0.05',
    ):
        assert line in text, line


async def test_low_vram_before_the_end_is_a_suspicion():
    gpu = GpuReading(
        uuid="GPU-1",
        index=0,
        memory_kind=MemoryKind.DEDICATED,
        memory_free_bytes=Fact(FactStatus.OK, 50 * 2**20),
    )
    worker, _ = scripted(GpuSnapshot(driver=DriverState.OK, read_at=1.0, gpus=(gpu,)))
    async with running(worker=worker, gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples)
        await one.engine.stop()
        await until(lambda: one.server.samples[-1].engine.out_of_memory)
        assert "50 MiB of VRAM free just before" in one.server.samples[-1].engine.detail


async def test_everything_that_the_agent_knows_is_on_its_page():
    def fact(value):
        return Fact(FactStatus.OK, value)

    gpu = GpuReading(
        uuid="GPU-1",
        index=0,
        health=GpuHealth.OK,
        memory_total_bytes=fact(80e9),
        memory_used_bytes=fact(70e9),
        memory_reserved_bytes=fact(1e9),
        memory_free_bytes=fact(9e9),
        utilization_ratio=fact(0.5),
        temperature_celsius=fact(60.0),
        power_watts=fact(300.0),
    )
    known = GpuSnapshot(driver=DriverState.OK, read_at=time.monotonic(), gpus=(gpu,))
    async with running(worker=scripted(known)[0], gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples and one.agent.uplinks[0].status.last_ack_at)
        _, text = await one.call("GET", "/metrics")
    shown = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    # Nobody asked for tokens, and no GPU had an error.
    assert set(METRICS) - shown == {"fleet_agent_token_probes_total", "fleet_agent_gpu_xids_total"}
    assert 'fleet_agent_engine_waiting_requests{engine_instance="a"} 20.0' in text
    assert 'fleet_agent_gpu_power_watts{gpu="GPU-1"} 300.0' in text
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == set(
        METRICS
    )


async def test_what_the_driver_does_not_say_has_no_series():
    async with running(worker=scripted(gpus())[0], gpus=["GPU-1"]) as one:
        await until(lambda: one.server.samples)
        _, text = await one.call("GET", "/metrics")
    assert "fleet_agent_gpu_memory_free_bytes{" in text
    assert "fleet_agent_gpu_power_watts{" not in text
