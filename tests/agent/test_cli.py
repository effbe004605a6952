from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest
import structlog
from typer.testing import CliRunner

from sidecar_agent import __version__, check, cli
from sidecar_agent.gpu.facts import (
    DriverState,
    Fact,
    FactStatus,
    GpuHealth,
    GpuReading,
    GpuSnapshot,
)
from sidecar_agent.gpu.nvml import WrongBindingsError
from sidecar_agent.settings import Settings
from tests.fakes.engine_pages import EnginePages, page
from tests.fakes.gpu_reader import scripted
from tests.fakes.telemetry_server import TelemetryServer

BUSY = page("vllm-0.32.0-load_waiting.prom")
GPU = GpuReading(
    uuid="GPU-1",
    index=0,
    name="NVIDIA H100",
    health=GpuHealth.OK,
    memory_total_bytes=Fact(FactStatus.OK, 80 * 2**30),
    memory_used_bytes=Fact(FactStatus.UNSUPPORTED),
)


@pytest.fixture(autouse=True)
def _own_logs():
    """Commands set up logging for their process; the other tests' logging comes back here."""
    yield
    structlog.reset_defaults()


def settings(address, *instances, **more):
    return Settings.model_validate(
        {
            "node": "host",
            "control_plane": {"address": address, "token": "secret"},
            "scrape": {"deadline_s": 0.3},
            "instances": list(instances),
            **more,
        }
    )


async def test_check_finds_nothing_wrong_where_nothing_is():
    found = GpuSnapshot(driver=DriverState.OK, driver_version="580.1", gpus=(GPU,))
    worker, reader = scripted(GpuSnapshot(driver=DriverState.STARTING), found)
    async with TelemetryServer() as server, EnginePages({"/metrics": BUSY}) as engine:
        one = {"name": "a", "url": engine.url, "gpus": ["GPU-1"]}
        report = await check.read(settings(server.address, one), worker, connect=True)
        assert not server.streams, "no hello: it would take over from the running agent"
    assert report.problems == ()
    assert not reader.is_open
    text = check.text(report)
    for part in (
        "driver 580.1: ok",
        "0: GPU-1 NVIDIA H100: ok, memory unknown, used unsupported of 80.0 GiB",
        f"a ({engine.url}): vllm up, KV 82.5%, waiting 20, running 4, page 53.6 KiB",
        "gpus GPU-1",
        f"{server.address}: reachable",
        "token: (set)",
        "problems\n  none",
    ):
        assert part in text, part
    assert "secret" not in text


async def test_check_tells_everything_that_is_wrong():
    lost = GpuReading(uuid="GPU-2", index=1, health=GpuHealth.LOST, detail="fell off the bus")
    worker, _ = scripted(GpuSnapshot(driver=DriverState.OK, gpus=(GPU, lost)))
    asleep = page("written-vllm_v1_dp2.prom").replace('"awake"} 1.0', '"awake"} 0.0')
    async with EnginePages({"/metrics": asleep}) as engine:
        report = await check.read(
            settings(
                "127.0.0.1:1",
                {"name": "a", "url": engine.url, "gpus": ["GPU-1", "GPU-9"]},
                {"name": "b", "url": "http://127.0.0.1:1"},
                {"name": "c", "url": f"{engine.url}/nowhere", "address": "c:1"},
                {"name": "d", "url": engine.url, "address": "d:1", "engine": "sglang"},
            ),
            worker,
            connect=True,
        )
    plane, *others = report.problems
    assert plane.startswith("control plane: no connection to 127.0.0.1:1: ")
    assert "refused" in plane
    assert others == [
        "a: GPU GPU-9 is not on this host",
        "gpu GPU-2: lost: fell off the bus",
        f"a ({engine.url}): sleeping: asleep: engine 0",
        "b (http://127.0.0.1:1): connection refused",
        f"c ({engine.url}/nowhere): no metrics page at {engine.url}/nowhere",
        f"d ({engine.url}): unknown: the page has no sglang numbers (still loading, or metrics are off)",
    ]
    assert len(report.notes) == 3
    text = check.text(report)
    assert "b (http://127.0.0.1:1): refused: connection refused" in text
    assert "KV missing, waiting missing" in text
    assert "notes\n  b: no gpus listed" in text


@pytest.mark.parametrize(
    ("snapshot", "gpus", "problems"),
    [
        (None, ["GPU-1"], ["gpu: instances list gpus, but gpu.backend is none"]),
        (None, [], []),
        (GpuSnapshot(driver=DriverState.ABSENT, detail="no library"), [], []),
        (
            GpuSnapshot(driver=DriverState.ABSENT, detail="no library"),
            ["GPU-1"],
            ["gpu: driver absent: no library"],
        ),
        (
            GpuSnapshot(driver=DriverState.FAILED, detail="version mismatch"),
            [],
            ["gpu: driver failed: version mismatch"],
        ),
    ],
    ids=["off but wanted", "off", "absent", "absent but wanted", "failed"],
)
async def test_check_judges_the_driver_by_what_is_wanted_of_it(snapshot, gpus, problems):
    async with EnginePages({"/metrics": BUSY}) as engine:
        report = await check.read(
            settings("127.0.0.1:1", {"name": "a", "url": engine.url, "gpus": gpus}),
            None if snapshot is None else scripted(snapshot)[0],
            connect=False,
        )
    assert list(report.problems) == problems
    assert "control plane\n" not in check.text(report), "it was not asked"


async def test_a_driver_that_does_not_start_is_waited_for_only_so_long(monkeypatch):
    monkeypatch.setattr(check, "GPU_S", 0.1)
    worker, _ = scripted(GpuSnapshot(driver=DriverState.STARTING))
    started = time.monotonic()
    report = await check.read(settings("127.0.0.1:1"), worker, connect=False)
    assert time.monotonic() - started < 20
    assert report.problems == ("gpu: driver starting: ",)


async def test_roots_that_cannot_be_read_are_a_problem(tmp_path):
    plane = {"address": "x:1", "tls": {"ca": str(tmp_path / "ca.pem")}}
    report = await check.read(settings("x:1", control_plane=plane), None, connect=True)
    assert report.problems[0].startswith("control plane: cannot open the channel")


async def test_once_prints_what_would_be_sent_as_json():
    async with EnginePages({"/metrics": BUSY}) as engine:
        arguments = ["once", "--json", "--gpu=none", "--node=n", f"--instance=a={engine.url}"]
        result = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    (one,) = values["instances"]
    assert (values["agent"], one["engine"], one["facts"]["waiting"]) == ("n", "vllm", 20.0)
    assert (values["driver"], one["gpu"], values["problems"]) == (None, None, [])


async def test_once_with_gpus_prints_devices_and_the_group():
    worker, _ = scripted(GpuSnapshot(driver=DriverState.OK, gpus=(GPU,)))
    async with EnginePages({"/metrics": BUSY}) as engine:
        one = {"name": "a", "url": engine.url, "gpus": ["GPU-1"]}
        report = await check.read(settings("127.0.0.1:1", one), worker, connect=False)
    values = json.loads(json.dumps(check.values(report)))
    assert values["driver"]["gpus"][0]["uuid"] == "GPU-1"
    assert values["instances"][0]["gpu"]["health"] == "ok"


def test_once_ends_with_1_when_something_is_wrong():
    arguments = ["once", "--gpu=none", "--instance=a=http://127.0.0.1:1"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 1
    assert "a (http://127.0.0.1:1): connection refused" in result.stdout


def test_unusable_settings_end_with_2_and_all_problems():
    arguments = ["run", "--gpu=gpu0", "--instance=a=ftp://x", "--admin=nowhere"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 3
    assert "gpu.backend: found 'gpu0'" in result.stderr


def test_wrong_nvml_bindings_end_with_2_and_their_name(monkeypatch):
    def wrong(_settings):
        raise WrongBindingsError("the distribution pynvml shadows nvidia-ml-py")

    monkeypatch.setattr(cli, "gpu_worker", wrong)
    result = CliRunner().invoke(cli.app, ["once", "--instance=a=http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "shadows nvidia-ml-py" in result.stderr


def test_drain_and_undrain_without_an_agent_end_with_3():
    for command in (["drain", "a", "--timeout=1"], ["undrain", "a"]):
        result = CliRunner().invoke(cli.app, [*command, "--admin=127.0.0.1:1"])
        assert result.exit_code == 3
        assert "no agent answers at 127.0.0.1:1" in result.stderr


def test_the_version_is_printed():
    result = CliRunner().invoke(cli.app, ["version"])
    assert (result.exit_code, result.stdout.strip()) == (0, __version__)


def test_check_runs_as_a_command_and_ends_with_1_for_problems():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sidecar_agent", "check", "--gpu=none"),
            *("--instance=a=http://127.0.0.1:1", "--control-plane=127.0.0.1:1"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        check=False,
    )
    assert done.returncode == 1
    assert "control plane: no connection to 127.0.0.1:1" in done.stdout
    assert "Traceback" not in done.stderr


def test_check_judges_the_address_of_the_agents_own_pages_too():
    done = CliRunner().invoke(
        cli.app, ["check", "--admin", "nowhere", "--instance", "a=http://h:1"]
    )
    assert done.exit_code == cli.EXIT_SETTINGS
    assert "admin: found 'nowhere', expected host:port, for example 127.0.0.1:9477" in done.output
