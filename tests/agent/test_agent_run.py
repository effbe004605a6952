"""A real agent process between a real HTTP engine and a real telemetry server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

from tests.fakes.engine_pages import EnginePages, page
from tests.fakes.telemetry_server import TelemetryServer


async def until(condition, timeout=10.0, what="condition"):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def agent(server, *instances, **environment):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sidecar_agent",
        "run",
        "--gpu=none",
        f"--control-plane={server.address}",
        "--admin=127.0.0.1:0",
        "--node=host-1",
        *[f"--instance={one}" for one in instances],
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5)
        if process.returncode is None:
            process.kill()
        err = (await process.communicate())[1]
        sys.stderr.write(err.decode())


async def test_an_agent_says_hello_and_streams_what_the_engine_says():
    async with TelemetryServer() as server, EnginePages() as engine:
        engine.pages["/metrics"] = page("vllm-0.32.0-kv_peak.prom")
        async with agent(server, f"a100-0={engine.url},engine=vllm,tier=primary"):
            await until(lambda: len(server.samples) >= 3, what="samples")
        hello = server.streams[0].hello
        assert (hello.agent, hello.instances[0].name) == ("host-1", "a100-0")
        sample = server.samples[0]
        assert sample.engine.kv_ratio == 1.0
        assert (sample.engine.waiting, sample.engine.running) == (17, 7)
        assert sample.sample_age_ms < 1000
