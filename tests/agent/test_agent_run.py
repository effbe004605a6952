"""A real agent process between real HTTP engines and a real telemetry server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent.gpu.reader import NoGpuReader
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.run import run
from sidecar_agent.settings import Settings
from tests.fakes.blackhole import Blackhole
from tests.fakes.engine_pages import EnginePages, page
from tests.fakes.telemetry_server import TelemetryServer
from tests.fakes.waiting import PATIENCE_S, until

IDLE = page("vllm-0.32.0-after.prom")
BUSY = page("vllm-0.32.0-load_waiting.prom")


def counted(text: str, *, generated: float, running: float = 0.0, waiting: float = 0.0) -> str:
    """Return a page with other numbers."""
    lines = []
    for line in text.splitlines():
        name = line.partition("{")[0]
        value = {
            "vllm:generation_tokens_total": generated,
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
        }.get(name)
        lines.append(line if value is None else f"{line.rpartition(' ')[0]} {value}")
    return "\n".join(lines) + "\n"


@dataclass
class AgentProcess:
    process: asyncio.subprocess.Process
    http: aiohttp.ClientSession
    config: Path
    events: list[dict] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def admin(self) -> str:
        (started,) = [one for one in self.events if one["event"] == "agent_started"]
        return started["admin"]

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"http://{self.admin}{path}") as response:
            return response.status, await response.text()

    async def instance(self, name: str = "a100-0") -> dict:
        return json.loads((await self.get(f"/instances/{name}"))[1])

    def said(self, event: str) -> list[dict]:
        return [one for one in self.events if one["event"] == event]

    async def command(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sidecar_agent",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        return process.returncode, output.decode()


@contextlib.asynccontextmanager
async def agent(tmp_path, server_address, *instances, **settings):
    config = tmp_path / "agent.yaml"
    values = {
        "node": "host-1",
        "admin": "127.0.0.1:0",
        "gpu": {"backend": "none"},
        "scrape": {"interval_s": 0.05, "deadline_s": 0.3},
        "send_interval_s": 0.2,
        "log": {"format": "json", "level": "debug"},
        "instances": list(instances),
        **settings,
    }
    values["control_plane"] = {"address": server_address, **settings.get("control_plane", {})}
    config.write_text(yaml.safe_dump(values))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sidecar_agent",
        "run",
        "--config",
        str(config),
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        stderr=asyncio.subprocess.PIPE,
    )
    async with aiohttp.ClientSession() as http:
        running = AgentProcess(process, http, config)

        async def follow():
            while line := await process.stderr.readline():
                running.lines.append(line.decode())
                with contextlib.suppress(ValueError):
                    running.events.append(json.loads(line))

        following = asyncio.create_task(follow())
        try:
            await until(lambda: running.said("agent_started"), what="the agent to start")
            yield running
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), PATIENCE_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
            await following
            sys.stderr.write("".join(running.lines))


def vllm(engine, **more):
    return {"name": "a100-0", "url": engine.url, "engine": "vllm", "tier": "primary", **more}


@contextlib.asynccontextmanager
async def fleet(tmp_path, text, *, interval_ms=200, through=None, instance=None, **settings):
    """Run a control plane, an engine that serves `text`, and an agent between them."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(TelemetryServer(interval_ms=interval_ms))
        engine = await stack.enter_async_context(EnginePages({"/metrics": text}))
        address = server.address
        if through is not None:
            address = (await stack.enter_async_context(through(server.port))).address
        one = vllm(engine, **(instance or {}))
        running = await stack.enter_async_context(agent(tmp_path, address, one, **settings))
        yield server, engine, running


async def test_an_agent_says_hello_and_streams_what_the_engine_says(tmp_path):
    async with fleet(tmp_path, BUSY, instance={"capacity": 40}) as (server, engine, running):
        await until(lambda: len(server.samples) >= 2, what="samples")
        await until(lambda: is_ready(running), what="readiness")
        status, text = await running.get("/metrics")
    hello = server.streams[0].hello
    assert (hello.agent, hello.protocol) == ("host-1", 1)
    assert abs(hello.epoch / 1000 - time.time()) < 60
    (owned,) = hello.instances
    assert (owned.name, owned.address) == ("a100-0", engine.url.removeprefix("http://"))
    assert (owned.tier, owned.capacity, owned.engine) == ("primary", 40, "vllm")
    sample = server.samples[0]
    assert sample.engine.state == pb.ENGINE_STATE_UP
    assert (sample.engine.waiting, sample.engine.running) == (20, 4)
    assert sample.engine.kv_ratio == pytest.approx(0.8254, abs=1e-4)
    assert sample.engine.reserved_ratio == 0.92
    assert sample.sample_age_ms < 20_000
    sequences = [one.sequence for one in server.samples]
    assert sequences == sorted(set(sequences))
    assert status == 200
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["fleet_agent_connected"].samples[0].value == 1
    scrapes = {one.labels["outcome"]: one.value for one in families["fleet_agent_scrapes"].samples}
    assert scrapes["page"] >= 2


async def is_ready(running):
    return (await running.get("/readyz"))[0] == 200


async def test_a_change_of_the_page_is_on_the_wire_within_a_scrape_interval(tmp_path):
    async with fleet(tmp_path, IDLE, interval_ms=60_000) as (server, engine, _):
        await until(lambda: server.samples, what="the first sample")
        for number in range(1, 6):
            engine.pages["/metrics"] = counted(BUSY, generated=1, waiting=number)
            changed_at = time.monotonic()
            await until(lambda n=number: server.samples[-1].engine.waiting == n)
            assert server.streams[0].arrived[-1] - changed_at < 20.0, "it waited for the interval"
        await asyncio.sleep(0.3)
        assert len(server.samples) == 6, "what does not move is not sent before its time"


async def test_a_restarted_control_plane_gets_a_hello_and_the_newest_sample_only(tmp_path):
    async with fleet(tmp_path, IDLE) as (server, engine, running):
        await until(lambda: server.samples)
        await server.stop()
        await until(lambda: running.said("control_plane_lost"))
        for number in range(1, 11):
            engine.pages["/metrics"] = counted(BUSY, generated=1, waiting=number)
            await asyncio.sleep(0.06)
        assert (await running.get("/readyz"))[0] == 503
        await server.start()
        await until(lambda: len(server.streams) == 2 and server.streams[1].samples)
        second = server.streams[1]
        assert second.hello.epoch == server.streams[0].hello.epoch
        assert second.samples[0].engine.waiting == 10
        assert all(one.engine.waiting == 10 for one in second.samples)


async def test_a_hung_engine_is_told_although_its_page_answers(tmp_path):
    frozen = page("vllm-0.32.0-engine_frozen.prom")
    async with fleet(tmp_path, frozen, instance={"hang_s": 0.5}) as (server, engine, _):
        await until(lambda: server.samples)
        assert server.samples[0].engine.state == pb.ENGINE_STATE_UP
        await until(lambda: server.samples[-1].engine.state == pb.ENGINE_STATE_HUNG)
        assert "no progress" in server.samples[-1].engine.detail
        engine.pages["/metrics"] = counted(frozen, generated=99_999, running=4)
        await until(lambda: server.samples[-1].engine.state == pb.ENGINE_STATE_UP)


async def test_an_engine_that_stops_answering_goes_quiet_and_then_hung(tmp_path):
    hang = {"hang_s": 1.5}
    async with fleet(tmp_path, BUSY, interval_ms=50, instance=hang) as (server, engine, running):
        await until(lambda: server.samples)
        engine.hold.clear()
        await until(lambda: is_unread(running))
        before = len(server.samples)
        await asyncio.sleep(0.5)
        assert len(server.samples) == before, "a failed read publishes nothing"
        await until(lambda: server.samples[-1].engine.state == pb.ENGINE_STATE_HUNG)
        assert not server.samples[-1].engine.HasField("waiting")


async def is_unread(running):
    return (await running.instance())["state"] == "unread"


async def test_a_counter_reset_and_a_death_by_memory_are_told(tmp_path):
    full = page("vllm-0.32.0-kv_peak.prom")
    async with fleet(tmp_path, counted(full, generated=9)) as (server, engine, _):
        await until(lambda: server.samples and server.samples[-1].engine.restarts == 0)
        engine.pages["/metrics"] = counted(full, generated=3)
        await until(lambda: server.samples[-1].engine.restarts == 1)
        assert server.samples[-1].engine.kv_ratio == 1.0
        await engine.stop()
        await until(lambda: server.samples[-1].engine.state == pb.ENGINE_STATE_DOWN)
        last = server.samples[-1].engine
        assert last.out_of_memory
        assert last.detail == "connection refused; KV cache 100% full just before"
        engine.pages["/metrics"] = counted(IDLE, generated=0)
        await engine.start()
        await until(lambda: server.samples[-1].engine.state == pb.ENGINE_STATE_UP)
        assert not server.samples[-1].engine.out_of_memory
        assert server.samples[-1].engine.restarts == 2


async def test_sigterm_ends_the_agent_though_an_engine_does_not_answer(tmp_path):
    async with fleet(tmp_path, IDLE) as (server, engine, running):
        await until(lambda: server.samples)
        running.process.send_signal(signal.SIGUSR1)  # means nothing without GPUs, and ends nothing
        running.process.send_signal(signal.SIGUSR2)
        assert (await running.get("/healthz"))[0] == 200
        engine.hold.clear()
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 0
        await until(lambda: server.streams[0].ended)
        assert server.streams[0].clean, "an end that was meant is no failure"
    assert running.events[-1]["event"] == "agent_stopped"
    assert not [line for line in running.lines if "Traceback" in line]


async def test_sigterm_ends_an_agent_that_has_no_control_plane(tmp_path):
    async with fleet(tmp_path, IDLE) as (server, _, running):
        await until(lambda: server.samples)
        await server.stop()
        await until(lambda: running.said("control_plane_lost"))
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 0


async def test_a_half_open_connection_is_replaced(tmp_path):
    holes = []

    def through(port):
        holes.append(Blackhole(port))
        return holes[0]

    keepalive = {"keepalive_s": 0.5, "keepalive_timeout_s": 0.5}
    half_open = fleet(tmp_path, IDLE, through=through, control_plane=keepalive)
    async with half_open as (server, engine, running):
        await until(lambda: server.samples)
        holes[0].swallow = True
        engine.pages["/metrics"] = counted(BUSY, generated=1, waiting=5)
        await until(lambda: running.said("control_plane_lost"))
        holes[0].swallow = False
        await until(lambda: len(server.streams) > 1 and server.streams[-1].samples)
        assert server.streams[-1].samples[-1].engine.waiting == 5


async def test_drain_waits_for_the_control_plane_and_for_the_last_request(tmp_path):
    busy = counted(IDLE, generated=1, running=1)
    async with fleet(tmp_path, busy, interval_ms=50) as (server, engine, running):
        await until(lambda: server.samples)
        draining = asyncio.create_task(
            running.command("drain", "a100-0", f"--admin={running.admin}", "--timeout=20")
        )
        await until(lambda: server.samples[-1].draining)
        await asyncio.sleep(0.3)
        assert not draining.done(), "nothing is confirmed yet"
        server.drained.add("a100-0")
        await until(lambda: is_drained(running))
        await asyncio.sleep(0.5)
        assert not draining.done(), "a request still runs"
        engine.pages["/metrics"] = counted(IDLE, generated=2)
        code, output = await draining
        assert code == 0
        assert "waiting for the control plane to confirm" in output
        assert "1 running" in output
        assert output.rstrip().endswith("a100-0: drained")
        async with running.http.post(f"http://{running.admin}/undrain/a100-0") as response:
            assert response.status == 200
        await until(lambda: not server.samples[-1].draining)


async def is_drained(running):
    return (await running.instance())["drained"]


async def test_an_address_in_use_is_one_clear_word(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sidecar_agent",
            "run",
            "--gpu=none",
            f"--admin=127.0.0.1:{taken.getsockname()[1]}",
            "--instance=a=http://127.0.0.1:1",
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 3
    assert b"admin_address_not_bound" in err
    assert b"Traceback" not in err


async def test_a_bug_in_whatever_runs_beside_the_agent_ends_the_process_and_not_its_part_alone():
    class Broken(GpuWorker):
        def latest(self):
            raise LookupError("a bug")

    settings = Settings.model_validate(
        {"admin": "127.0.0.1:0", "instances": [{"name": "a", "url": "http://127.0.0.1:1"}]}
    )
    with pytest.raises(LookupError, match="a bug"):
        await asyncio.wait_for(run(settings, Broken(NoGpuReader())), PATIENCE_S)
