"""The agent's own process, on GPUs of the stub library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from demo.nvmlstub import environment, read_calls
from tests.fakes.engine_pages import EnginePages, page
from tests.fakes.nvml import GIB, LOST, MISMATCH
from tests.fakes.telemetry_server import TelemetryServer
from tests.fakes.waiting import PATIENCE_S, until

A, B = "GPU-aaaaaaaa-0", "GPU-bbbbbbbb-0"
ROOT = Path(__file__).resolve().parents[3]


class Host:
    """A host with the stub's GPUs, one engine and what runs on it."""

    def __init__(self, *, state, library, engine, directory, server=None):
        self.state, self.library, self.engine = state, library, engine
        self.calls_path = directory / "calls"
        self.config = directory / "agent.yaml"
        self.server = server

    def configure(self, *gpus):
        address = self.server.address if self.server else "127.0.0.1:1"
        instance = {"name": "one", "url": self.engine.url, "engine": "vllm", "gpus": list(gpus)}
        values = {
            "node": "host-1",
            "admin": "127.0.0.1:0",
            "control_plane": {"address": address},
            "scrape": {"interval_s": 0.05, "deadline_s": 0.5},
            "gpu": {"backend": "nvml", "interval_s": 0.1},
            "log": {"format": "json"},
            "instances": [instance],
        }
        self.config.write_text(yaml.safe_dump(values))

    @property
    def calls(self):
        return read_calls(self.calls_path)

    async def start(self, *arguments, **variables):
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar_agent", *arguments, "--config", str(self.config)),
            env=os.environ
            | environment(self.library, self.state, calls=self.calls_path)
            | {"PYTHONPATH": str(ROOT)}
            | variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def once(self, **variables):
        """Run `once --json`; return its exit code and what it printed."""
        process = await self.start("once", "--json", **variables)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        return process.returncode, json.loads(out)

    @asynccontextmanager
    async def running(self):
        """Run the agent; yield its process and how to get its pages."""
        process = await self.start("run")
        assert process.stderr is not None
        following = None
        try:
            admin = None
            while admin is None:
                line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)
                assert line, "the agent ended"
                admin = json.loads(line).get("admin")
            following = asyncio.create_task(process.stderr.read())
            async with aiohttp.ClientSession(f"http://{admin}") as http:

                async def get(path):
                    async with http.get(path) as response:
                        return response.status, await response.text()

                yield process, get
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if following is not None:
                await following


@pytest.fixture
async def host(state, library, tmp_path):
    async with EnginePages({"/metrics": page("vllm-0.32.0-after.prom")}) as engine:
        yield Host(state=state, library=library, engine=engine, directory=tmp_path)


@pytest.fixture
async def connected(host):
    async with TelemetryServer() as server:
        host.server = server
        yield host


def reasons(answer):
    return [one for one in json.loads(answer[1])["reasons"] if one.startswith("gpu")]


async def test_once_prints_the_pair_reduced_and_the_devices_behind_it(host, state):
    state.gpu(0, uuid=A, total=100 * GIB, used=95 * GIB, name="NVIDIA H100")
    state.gpu(1, uuid=B, total=100 * GIB, used=86 * GIB)
    host.configure(A, B)
    code, said = await host.once()
    assert (code, said["problems"]) == (0, [])
    assert said["instances"][0]["gpu"] == {
        "health": "ok",
        "detail": "",
        "memory_kind": "dedicated",
        "vram_ratio": 0.95,
        "vram_free_bytes": 5 * GIB,
        "shared": False,
    }
    assert [gpu["uuid"] for gpu in said["driver"]["gpus"]] == [A, B]
    assert said["driver"]["version"] == "000.00-stub"
    assert host.calls["refcount"] == 0


async def test_once_tells_which_gpu_is_lost_and_which_is_not_there(host, state):
    state.gpu(0, uuid=A, total=100 * GIB)
    state.fail(0, LOST, function="nvmlDeviceGetMemoryInfo_v2")
    host.configure(A, B)
    code, said = await host.once()
    assert code == 1
    assert said["instances"][0]["gpu"]["health"] == "lost"
    assert sorted(said["problems"]) == [
        f"gpu {A}: lost: the GPU is lost (fell off the bus)",
        f"one: GPU {B} is not on this host",
    ]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES=1 means gpus: [{A}]"),
        ("FASTEST_FIRST", "CUDA_VISIBLE_DEVICES=1: index 1 is ambiguous"),
    ],
)
async def test_an_index_is_translated_only_where_it_means_one_gpu(host, state, order, said):
    state.gpu(0, uuid=B, total=100 * GIB)
    state.gpu(1, uuid=A, total=100 * GIB)
    host.configure()
    _, report = await host.once(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER=order)
    missing, note = report["notes"]
    assert missing.startswith("one: no gpus listed")
    assert note.startswith(said)


async def test_a_time_sliced_gpu_is_found(host, state):
    state.gpu(0, uuid=A, total=100 * GIB)
    host.configure(f"{A}::1")
    code, report = await host.once()
    assert (code, report["problems"]) == (0, [])
    assert report["instances"][0]["gpu"]["health"] == "ok"


async def test_a_hung_driver_delays_no_page_no_sample_and_no_end(connected, state):
    state.gpu(0, uuid=A, total=100 * GIB, used=50 * GIB)
    connected.configure(A)
    async with connected.running() as (process, get):

        async def ready():
            return (await get("/readyz"))[0] == 200

        await until(ready)
        state.set("hang", "nvmlDeviceGetMemoryInfo_v2")

        async def stalled():
            return reasons(await get("/readyz"))

        (reason,) = await until(stalled)
        assert reason == "gpu: stalled: the driver has not answered within 2 s"
        took = []
        for _ in range(20):
            started = time.monotonic()
            assert (await get("/metrics"))[0] == 200
            took.append(time.monotonic() - started)
        assert sorted(took)[10] < 1.5, "it waits for the driver"
        samples = len(connected.server.samples)

        async def more():
            return len(connected.server.samples) > samples + 2

        await until(more)
        newest = connected.server.samples[-1]
        assert not newest.gpu.HasField("vram_ratio")
        assert newest.engine.HasField("kv_ratio")
        assert newest.sample_age_ms < 2000, "as old as the call that hangs"
        assert connected.calls["peak_in_flight"] == 1
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_a_lost_gpu_travels_at_once(connected, state):
    state.gpu(0, uuid=A, total=100 * GIB, used=50 * GIB)
    connected.configure(A)
    async with connected.running() as (process, get):

        def newest(health):
            async def there():
                samples = connected.server.samples
                return bool(samples) and samples[-1].gpu.health == health

            return there

        await until(newest(1))
        state.xid(0, 79)
        await until(newest(3))
        state.fail(0, LOST)
        await until(newest(4))
        state.fail(0, None)
        await until(newest(3))
        metrics = (await get("/metrics"))[1]
        assert f'fleet_agent_gpu_xids_total{{gpu="{A}",xid="79"}} 1.0' in metrics
        assert f'fleet_agent_gpu_health{{gpu="{A}",health="reset_required"}} 1.0' in metrics
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    assert connected.calls["refcount"] == 0
    assert connected.calls["nvmlInitWithFlags"] == 1


async def test_the_driver_is_let_go_of_on_sigusr1_and_taken_up_on_sigusr2(host, state):
    state.gpu(0, uuid=A, total=100 * GIB)
    host.configure(A)
    async with host.running() as (process, get):

        def because(start):
            async def told():
                found = reasons(await get("/readyz"))
                return not found if start is None else found and found[0].startswith(start)

            return told

        await until(because(None))
        process.send_signal(signal.SIGUSR1)
        await until(because("gpu: released"))
        assert host.calls["refcount"] == 0
        process.send_signal(signal.SIGUSR2)
        await until(because(None))
        assert host.calls["refcount"] == 1


async def test_a_driver_upgraded_underneath_makes_the_agent_unready_and_says_why(host, state):
    state.gpu(0, uuid=A, total=100 * GIB)
    state.set("err.nvmlInitWithFlags", MISMATCH)
    host.configure(A)
    async with host.running() as (process, get):

        async def told():
            return reasons(await get("/readyz"))

        (reason,) = await until(told)
        assert reason.startswith(
            "gpu: failed: the driver's library and kernel module have different"
        )
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
