"""The agent against the control plane's own ingest: both sides of the protocol mean the same."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time

import aiohttp
import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent import drain, encode
from sidecar_agent.admin import serving
from sidecar_agent.agent import Agent
from sidecar_agent.engine.adapters import Options, Texts, detect
from sidecar_agent.engine.intake import believable
from sidecar_agent.gpu.facts import (
    DriverState,
    Fact,
    FactStatus,
    GpuHealth,
    GpuReading,
    GpuSnapshot,
)
from sidecar_agent.gpu.facts import MemoryKind as AgentMemoryKind
from sidecar_agent.join import Sample
from sidecar_agent.settings import Settings
from tests.fakes.engine_pages import PAGES, EnginePages, page
from tests.fakes.gpu_reader import scripted
from tests.fakes.plans import one_tier
from tests.fakes.waiting import PATIENCE_S, until
from xds_server.core.model import InstanceId
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import EngineState, MemoryKind
from xds_server.core.sample import GpuHealth as SampleHealth
from xds_server.ingest.decode import Decoded, decode_sample
from xds_server.ingest.registry import Registry
from xds_server.ingest.server import TelemetryServer
from xds_server.observability.metrics import Tally


@contextlib.asynccontextmanager
async def plane(*names, token=None):
    """Serve the real telemetry service; yield it with the samples it took."""
    samples = []
    service = TelemetryServer(
        registry=Registry(one_tier(*names)),
        offer=samples.append,
        registered=lambda: None,
        policy=TelemetryPolicy(),
        clock=time.monotonic,
        tally=Tally(),
        token=token,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield service, samples, f"127.0.0.1:{port}"
    finally:
        await server.stop(0.2)


@contextlib.asynccontextmanager
async def agent_of(address, *instances, worker=None, token="", epoch=2, node="host"):
    settings = Settings.model_validate(
        {
            "node": node,
            "control_plane": {"address": address, "token": token},
            "scrape": {"interval_s": 0.05, "deadline_s": 0.2},
            "instances": list(instances),
        }
    )
    agent = Agent(settings, gpu=worker, epoch=epoch, clock=time.monotonic, rng=random.Random(1))
    if worker is not None:
        worker.start()
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if worker is not None:
            worker.close()


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.prom")))
async def test_every_captured_page_becomes_a_sample_that_the_control_plane_takes(name):
    async with EnginePages({"/metrics": page(name)}) as engine, plane("a") as (_, samples, address):
        async with agent_of(address, {"name": "a", "url": engine.url}) as agent:
            await until(lambda: samples)
        facts = agent.instances["a"].engine.facts
        taken = samples[0].engine
        assert taken.state is EngineState.UP
        for field in ("kv_ratio", "waiting", "running", "generation_tokens_total", "slots"):
            assert getattr(taken, field) == getattr(facts, field), field
        assert agent.uplinks[0].status.refusals == {}
        assert abs(samples[0].observed_at - time.monotonic()) < 5


NUMBERS = (
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e308",
    "1e999",
    "9e14",
    "0",
    "1e-320",
    "abc",
    "",
    "0.5",
    "101",
)


@st.composite
def distorted(draw):
    """A captured page of which some numbers and labels are nonsense, and some lines are there twice."""
    text = page(draw(st.sampled_from(sorted(path.name for path in PAGES.glob("*.prom")))))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(lines) - 1))
        number = draw(st.sampled_from(NUMBERS))
        if draw(st.booleans()):
            lines[place] = re.sub(r" \S*$", f" {number}", lines[place])
        else:
            lines[place] = re.sub(r'="[^"]*"', f'="{number}"', lines[place])
        if draw(st.booleans()):
            lines.append(lines[place])
    return "\n".join(lines)


@given(distorted())
@example('vllm:num_requests_running{engine="0"} 9e14\nvllm:num_requests_running{engine="1"} 9e14')
@example(
    'vllm:num_requests_running 1\nvllm:cache_config_info{num_gpu_blocks="1e308",block_size="1e308"} 1'
)
def test_whatever_numbers_a_page_has_the_control_plane_takes_the_sample(text):
    adapter = detect(text)
    if adapter is None:
        return
    facts = believable(adapter.read(Texts(metrics=text), Options()))
    sample = Sample(instance="a", observed_at=0.0, sequence=1, engine=facts)
    sent = pb.AgentMessage.FromString(encode.samples([sample], now=0.0)).samples.samples[0]
    assert isinstance(decode_sample(sent, agent="host", now=9.0, max_age_s=30.0), Decoded)


async def test_gpu_facts_a_death_and_a_return_mean_the_same_on_both_sides():
    gpu = GpuReading(
        uuid="GPU-1",
        index=0,
        health=GpuHealth.THROTTLED,
        memory_kind=AgentMemoryKind.DEDICATED,
        memory_total_bytes=Fact(FactStatus.OK, 80e9),
        memory_used_bytes=Fact(FactStatus.OK, 40e9),
        memory_free_bytes=Fact(FactStatus.OK, 40e9),
    )
    worker, _ = scripted(GpuSnapshot(driver=DriverState.OK, read_at=1.0, gpus=(gpu,)))
    text = page("vllm-0.32.0-kv_peak.prom")
    async with EnginePages({"/metrics": text}) as engine, plane("a") as (_, samples, address):
        instance = {"name": "a", "url": engine.url, "gpus": ["GPU-1"]}
        async with agent_of(address, instance, worker=worker):
            await until(lambda: samples and samples[-1].gpu.vram_ratio is not None)
            facts = samples[-1].gpu
            assert (facts.health, facts.memory_kind) == (
                SampleHealth.THROTTLED,
                MemoryKind.DEDICATED,
            )
            assert (facts.vram_ratio, facts.vram_free_bytes, facts.shared) == (0.5, 40e9, False)
            await engine.stop()
            await until(lambda: samples[-1].engine.state is EngineState.DOWN)
            assert samples[-1].engine.out_of_memory
            assert samples[-1].urgent
            engine.pages["/metrics"] = page("vllm-0.32.0-idle_fresh.prom")
            await engine.start()
            await until(lambda: samples[-1].engine.state is EngineState.UP)
            assert samples[-1].engine.restarts == 1


async def test_a_drain_is_confirmed_by_the_control_plane():
    async with contextlib.AsyncExitStack() as stack:
        text = page("vllm-0.32.0-after.prom")
        engine = await stack.enter_async_context(EnginePages({"/metrics": text}))
        service, samples, address = await stack.enter_async_context(plane("a"))
        instance = {"name": "a", "url": engine.url}
        agent = await stack.enter_async_context(agent_of(address, instance))
        admin = await stack.enter_async_context(serving(agent, "127.0.0.1:0"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: samples)
        waiting = asyncio.create_task(
            drain.drain(admin=admin, instance="a", timeout_s=PATIENCE_S, say=lambda _: None)
        )
        await until(lambda: samples[-1].draining)
        service.drained({InstanceId("a")})
        assert await waiting == drain.EXIT_DRAINED
        async with http.get(f"http://{admin}/instances/a") as response:
            assert (await response.json())["drained"] is True


async def test_refusals_of_the_control_plane_reach_the_operator():
    token = "a-token-of-some-length"
    async with plane("a", token=token) as (_, samples, address):
        instance = {"name": "nobody", "url": "http://127.0.0.1:1"}
        async with agent_of(address, instance, token=token) as agent:
            await until(lambda: "nobody" in agent.uplinks[0].status.refusals)
            assert agent.uplinks[0].status.refusals["nobody"].code == "UNKNOWN_INSTANCE"
        async with agent_of(address, instance, token="wrong") as agent:
            await until(lambda: agent.uplinks[0].status.refused_stream is not None)
            assert agent.uplinks[0].status.refused_stream.code == "UNAUTHENTICATED"
        assert not samples


async def test_a_late_run_of_an_agent_is_refused_and_its_successor_goes_on():
    text = page("vllm-0.32.0-after.prom")
    async with EnginePages({"/metrics": text}) as engine, plane("a") as (_, samples, address):
        instance = {"name": "a", "url": engine.url}
        async with agent_of(address, instance, epoch=20) as successor:
            await until(lambda: samples)
            async with agent_of(address, instance, epoch=10) as late:
                await until(lambda: late.uplinks[0].status.refused_stream is not None)
                assert late.uplinks[0].status.refused_stream.code == "STALE_EPOCH"
            assert successor.uplinks[0].status.connected
        async with agent_of(address, instance, epoch=10) as after:
            await until(lambda: after.uplinks[0].status.connected)
