"""diff and simulate: what would be, before it is."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT, running_server
from xds_server.cli import app

DESIGN = (ROOT / "tests/config/design.yaml").read_text()
INSTANCES = ("a100-0", "a100-1", "l4-0")
TWO_MODELS = """
models:
  - name: chat
    match: {domains: [chat.test]}
    tiers:
      - {name: primary, instances: [{name: a, address: "127.0.0.1:1"}]}
      - {name: static, answer: {json: {choices: []}}}
  - name: code
    match: {domains: [code.test]}
    tiers:
      - {name: primary, instances: {discover: agents}}
      - {name: static, answer: {json: {choices: []}}}
"""


@pytest.fixture
def old(tmp_path) -> Path:
    path = tmp_path / "old.yaml"
    path.write_text(DESIGN)
    return path


@pytest.fixture
def new(tmp_path) -> Path:
    path = tmp_path / "new.yaml"
    text = DESIGN.replace("a100-1", "a100-2").replace("8002, capacity: 40", "8002, capacity: 40")
    path.write_text(text.replace("capacity: 20}", "capacity: 30}"))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_diff_of_two_files_names_settings_weights_and_resources(old, new):
    done = run("diff", str(new), "--against", str(old), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["is_same"] is False
    assert "models.chat.tiers.fallback.instances.l4-0.capacity: 20 -> 30" in found["settings"]
    weights = {each["instance"]: (each["before"], each["after"]) for each in found["instances"]}
    assert weights == {
        "a100-0": (1000, 1000),
        "a100-1": (1000, None),
        "a100-2": (None, 1000),
        "l4-0": (1000, 1000),
    }
    assert found["resources"]["endpoints"] == {
        "added": [],
        "removed": [],
        "changed": ["chat/primary"],
    }
    done = run("diff", str(new), "--against", str(old), "--exit-code")
    assert done.exit_code == 3
    for text in ("a100-2", "endpoints changed: chat/primary"):
        assert text in done.stdout


def test_diff_of_the_same_file_is_nothing(old):
    done = run("diff", str(old), "--against", str(old), "--exit-code")
    assert done.exit_code == 0
    assert done.stdout == "The settings are the same.\nProxies would get nothing new.\n"


async def test_diff_with_a_running_server_counts_what_it_knows_and_applies_nothing(
    old, new, tmp_path
):
    async with (
        running_server(old, tmp_path / "state", ["--grace-s", "0"]) as server,
        connected_agent(server.target) as agent,
    ):
        await agent.greet(*INSTANCES)
        for name in INSTANCES:
            await agent.report(name)
        await server.event("server_warm")
        await server.post("/drain/a100-0?who=ann&why=test")
        async with asyncio.timeout(PATIENCE_S):
            while (await server.get_json("/debug/explain?subject=a100-0"))["state"] != "draining":
                await asyncio.sleep(0.02)
        before = await server.get_json("/debug/snapshot")
        admin = ("--admin", server.admin_url)
        done = await asyncio.to_thread(run, "diff", str(new), "--json", *admin)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        weights = {each["instance"]: (each["before"], each["after"]) for each in found["instances"]}
        assert weights["a100-0"] == (0, 0), "it stays drained"
        assert weights["a100-1"][1] is None
        assert weights["a100-2"][0] is None
        assert await server.get_json("/debug/snapshot") == before
        done = await asyncio.to_thread(run, "diff", str(old), "--exit-code", *admin)
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (
            0,
            "Proxies would get nothing new.",
        )
        async with server.session.post(server.admin_url + "/api/diff", data=b"\xff") as answer:
            assert (answer.status, (await answer.json())["error"]) == (
                400,
                "the configuration is not UTF-8",
            )
        async with server.session.post(server.admin_url + "/api/diff", data=b"models: 1") as answer:
            assert answer.status == 400
            assert "models" in (await answer.json())["error"]
        url = server.admin_url + "/api/diff"
        async with server.session.post(url, data=io.BytesIO(b" " * (4 * 2**20 + 1))) as answer:
            assert answer.status == 400
        async with server.session.post(url, headers={"Origin": "http://x.test"}) as answer:
            assert answer.status == 403


def test_a_diff_that_cannot_be_made_says_why(old, tmp_path):
    missing = str(tmp_path / "missing.yaml")
    done = run("diff", missing, "--against", str(old))
    assert done.exit_code == 2
    assert "No such file" in done.stderr
    done = run("diff", str(old), "--admin", "127.0.0.1:1")
    assert done.exit_code == 1
    assert "is it running?" in done.stderr


def test_a_simulated_overload_spills_and_nobody_waits_as_long_as_with_fixed_weights(old):
    asked = ("simulate", str(old), "--load", "1.5", "--seconds", "120", "--json")
    done = run(*asked)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["offered_per_s"] == pytest.approx(1.5 * found["capacity_per_s"], rel=1e-3)
    assert sum(found["policy"]["served_ratio"]) == pytest.approx(1.0)
    assert found["policy"]["wait_p99_s"] < found["fixed_weights"]["wait_p99_s"]
    assert found["timeline"][-1]["shares"]["primary"] < 1.0
    assert any(each["name"] == "spill_started" for each in found["events"])
    assert run(*asked).stdout == done.stdout, "equal seeds give equal runs"


def test_a_simulation_is_a_table_for_people(old):
    done = run("simulate", str(old), "--load", "0.5", "--seconds", "30", "--lag", "2")
    assert done.exit_code == 0
    for text in ("served by primary", "100%", "wait in queue, p99", "fixed weights"):
        assert text in done.stdout


def test_one_of_several_models_is_simulated_with_the_slots_that_are_given(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(TWO_MODELS)
    asked = ("simulate", str(config), "--load", "0.5", "--seconds", "20")
    done = run(*asked)
    assert (done.exit_code, done.stderr) == (
        2,
        "xds-server: --model is missing; there is chat, code\n",
    )
    done = run(*asked, "--model", "code")
    assert done.exit_code == 1
    assert "its first tier has no instances" in done.stderr
    found = {}
    for slots in ("10", "20"):
        done = run(*asked, "--model", "chat", "--slots", slots, "--json")
        found[slots] = json.loads(done.stdout)["capacity_per_s"]
    assert found["20"] == pytest.approx(2 * found["10"], rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(["--load", "0"], "--load: 0: expected", id="no-load"),
        pytest.param(["--load", "nan"], "--load: nan: expected", id="nan"),
        pytest.param(["--load", "1", "--seconds", "1"], "--seconds: 1", id="too-short"),
        pytest.param(["--load", "1", "--lag", "-1"], "--lag: -1", id="negative-lag"),
        pytest.param(["--load", "100", "--seconds", "86400"], "requests: choose", id="too-much"),
        pytest.param(["--load", "1", "--model", "x"], "no model 'x'; there is chat", id="model"),
    ],
)
def test_a_simulation_that_cannot_be_says_why(old, flags, text):
    done = run("simulate", str(old), *flags)
    assert done.exit_code == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
