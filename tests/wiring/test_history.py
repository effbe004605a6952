"""The history of a real process: what happened is there afterwards, however the process ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path

import grpc.aio
import pytest
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from typer.testing import CliRunner, Result

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.ports import free_port
from tests.fakes.small_disk import free_bytes, make_read_only, small_disk
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S, until
from tests.fakes.xds_process import ROOT, running_server
from xds_server.cli import app
from xds_server.commands.admin_client import lines
from xds_server.observability.history import config_version
from xds_server.resources.snapshot import CLUSTER
from xds_server.store.file import read
from xds_server.store.row import Query

DESIGN = (ROOT / "tests/config/design.yaml").read_text()
INSTANCES = ("a100-0", "a100-1", "l4-0")
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(DESIGN)
    return path


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def greet(agent, epoch=1):
    await agent.greet(*INSTANCES, epoch=epoch)
    for name in INSTANCES:
        await agent.report(name)


def having(server, **given):
    """Return a condition: the events asked for, once there are any."""

    async def condition():
        query = "&".join(f"{key}={value}" for key, value in given.items())
        return (await server.get_json(f"/api/events?{query}"))["events"]

    return condition


async def test_what_happened_is_told_in_the_order_in_which_it_did(config, tmp_path):
    async with (
        running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server,
        connected_agent(server.target) as agent,
        grpc.aio.insecure_channel(server.target) as channel,
    ):
        admin = ("--admin", server.admin_url)
        await greet(agent)
        # A proxy comes, refuses twice for one reason, and takes it after all.
        call = channel.stream_stream(ADS)()
        request = DiscoveryRequest(type_url=CLUSTER)
        request.node.id = "edge-1"
        await call.write(request.SerializeToString())
        first = DiscoveryResponse.FromString(await asyncio.wait_for(call.read(), PATIENCE_S))
        request.response_nonce = first.nonce
        request.error_detail.message = "no such \x1b[31mfield"
        await call.write(request.SerializeToString())
        (nack,) = await until(having(server, name="xds_nack_received"))
        assert (nack["proxy"], nack["kind"]) == ("edge-1", "proxy")
        assert nack["data"]["type"] == "Cluster"
        # An operator drains, an engine dies, the file changes.
        await server.post("/drain/a100-1?who=ann&why=new%20driver")
        for _ in range(3):
            await agent.report("a100-0", state=pb.ENGINE_STATE_DOWN)
        (down,) = await until(having(server, instance="a100-0", name="instance_down"))
        assert (down["model"], down["tier"], down["after"]) == ("chat", "primary", "down")
        assert down["rule"]
        config.write_text(DESIGN.replace("0.85", "0.84") + "\n# changed\n")
        await until(having(server, name="config_reloaded"))
        config.write_text("models: 1")
        (refused,) = await until(having(server, name="config_refused"))
        assert "models" in refused["text"]
        call.cancel()
        await until(having(server, name="proxy_disconnected"))

        async def all_on_disk():
            found = await having(server)()
            return found if all(each["id"] for each in found) else None

        everything = await until(all_on_disk)
        (down,) = await having(server, instance="a100-0", name="instance_down")()
        assert [each["id"] for each in everything] == list(range(1, len(everything) + 1))
        at = [each["at_unix_s"] for each in everything]
        assert at == sorted(at)
        assert {each["kind"] for each in everything} >= {
            *("decision", "weights", "proxy", "config", "operator", "process"),
        }
        (drain,) = await having(server, kind="operator")()
        assert (drain["who"], drain["why"], drain["model"]) == ("ann", "new driver", "chat")

        # The same as commands.
        done = await run("events", *admin)
        assert done.exit_code == 0, done.stderr
        told = done.stdout.splitlines()
        # Time goes on: telemetry that nobody sends any more becomes old, which is an event too.
        assert len(told) >= len(everything)
        assert any("drain_requested  chat/primary a100-1  by ann: new driver" in s for s in told)
        assert "\x1b" not in done.stdout
        assert "no such ?[31mfield" in done.stdout
        done = await run("events", "--kind", "proxy,config", "--since", "10m", "--json", *admin)
        names = [json.loads(line)["name"] for line in done.stdout.splitlines()]
        assert names[0] == "config_loaded"
        assert set(names) > {"proxy_connected", "xds_nack_received", "config_refused"}
        done = await run("events", "--limit", "1", *admin)
        assert "only the newest 1" in done.stderr
        done = await run("events", "--instance", "l4-0", "--name", "instance_down", *admin)
        assert (done.exit_code, done.stdout) == (0, "")
        assert "nothing happened that fits" in done.stderr

        done = await run("incident", str(down["id"]), *admin)
        assert done.exit_code == 0, done.stderr
        assert f"# Incident {down['id']}: instance_down of chat/primary a100-0 at " in done.stdout
        assert f"- Configuration in use: {config_version(DESIGN)}" in done.stdout
        for part in ("## Timeline", "## Evidence", "## Weights of tiers", "by ann: new driver"):
            assert part in done.stdout
        file = tmp_path / "incident.json"
        asked = ("incident", "--at", "0s", "--around", "1h", "--format", "json")
        done = await run(*asked, "--output", str(file), *admin)
        assert done.exit_code == 0, done.stderr
        found = json.loads(file.read_text())
        assert found["models"] == ["chat"]
        assert found["weights"][-1]["after"].startswith("primary=")
        assert {each["name"] for each in found["timeline"]} > {"instance_down", "drain_requested"}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        pytest.param(["events", "--model", "chta"], 1, "no model 'chta'", id="model"),
        pytest.param(["events", "--instance", "x"], 1, "a100-0, a100-1, l4-0", id="instance"),
        pytest.param(
            ["events", "--since", "soon"], 2, "since: 'soon': expected a span", id="since"
        ),
        pytest.param(["events", "--kind", "x"], 2, "kind: 'x': expected some of dec", id="kind"),
        pytest.param(["events", "--limit", "0"], 2, "limit: 0: expected 1 to 5000", id="limit"),
        pytest.param(["events", "--limit", "-1"], 2, "limit: '-1'", id="negative"),
        pytest.param(["incident"], 2, "either ID", id="neither"),
        pytest.param(["incident", "1", "--at", "1m"], 2, "either ID", id="both"),
        pytest.param(["incident", "999"], 1, "there is no event 999", id="no-event"),
        pytest.param(["incident", "0"], 2, "greater than or equal to 1", id="zero"),
        pytest.param(["incident", "--at", "3d"], 1, "nothing happened in that time", id="quiet"),
        pytest.param(["incident", "--at", "1m", "--around", "9w"], 2, "at most 7d", id="around"),
        pytest.param(
            ["incident", "1", "--output", "/nowhere/x"], 1, "/nowhere/x: No such", id="out"
        ),
        pytest.param(["events", "--follow", "--until", "1m"], 2, "do not go together", id="follow"),
        pytest.param(
            ["record", "/tmp", "--for", "1m"], 2, "FILE: /tmp: expected", id="record-there"
        ),
        pytest.param(
            ["record", "/nowhere/x", "--for", "1s"], 1, "No such file", id="record-nowhere"
        ),
        pytest.param(
            ["record", "x.gz", "--for", "1y"], 2, "--for: '1y': expected", id="record-for"
        ),
        pytest.param(["record", "x.gz", "--for", "2d"], 2, "at most 1d", id="record-long"),
    ],
)
async def test_what_cannot_be_answered_is_one_sentence_and_a_code(
    quiet_server, arguments, code, text
):
    done = await run(*arguments, "--admin", quiet_server)
    assert done.exit_code == code, done.output
    assert text in done.stderr
    assert done.stdout == ""
    assert not Path("x.gz").exists()
    assert not Path("x.gz.part").exists()


DOCUMENTED = [
    line.partition("#")[0].split()[1:]
    for line in (ROOT / "docs/history.md").read_text().splitlines()
    if line.startswith("xds-server ")
]


@pytest.mark.parametrize("arguments", DOCUMENTED, ids=" ".join)
async def test_every_documented_command_is_understood(
    quiet_server, arguments, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.yaml").write_text(DESIGN)
    if "--follow" in arguments:
        monkeypatch.setattr("xds_server.commands.history._follow", lambda *_, **__: None)
    if arguments[0] == "replay":
        done = await run("record", "now.jsonl.gz", "--for", "300ms", "--admin", quiet_server)
        assert done.exit_code == 0, done.output
        done = await run(*arguments)
        assert done.exit_code == 0, done.output
        assert Path("now.svg").exists()
        return
    done = await run(*("300ms" if each == "60s" else each for each in arguments),
                     "--admin", quiet_server)  # fmt: skip
    # The example speaks of an incident that this server never had.
    assert done.exit_code == (1 if arguments[0] == "incident" else 0), done.output
    if arguments[0] == "incident":
        assert "no event 42" in done.stderr or "nothing happened" in done.stderr


@pytest.fixture(scope="module")
def quiet_server(tmp_path_factory):
    """The admin address of a server that nothing happens to."""
    folder = tmp_path_factory.mktemp("quiet")
    (folder / "config.yaml").write_text(DESIGN)
    from tests.fakes.xds_process import command

    process = subprocess.Popen(
        command(folder / "config.yaml", folder / "state", "--grace-s", "0"),
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        for line in process.stderr:
            event = json.loads(line)
            if event["event"] == "server_warm":
                break
            if event["event"] == "server_started":
                port = event["admin_port"]
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE_S
        while not _is_on_disk(url):
            assert time.monotonic() < deadline, "its events do not reach the disk"
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def _is_on_disk(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/api/events") as answer:
        events = json.load(answer)["events"]
    return bool(events) and all(each["id"] for each in events)


async def test_the_pages_refuse_what_they_do_not_know(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        await until(having(server, name="server_started"))
        for path, status in (
            ("/api/events?colour=red", 400),
            ("/api/events?until=never", 400),
            ("/api/events?after=x", 400),
            ("/api/events?tier=nope", 404),
            ("/api/events/77", 404),
            ("/api/events/1", 200),
            ("/api/incident?id=x", 400),
            ("/api/incident?id=1&around=x", 400),
            ("/api/incident?id=99999999999999999", 404),
            ("/api/incident?at=1e99", 400),
            ("/api/incident?id=1", 200),
            ("/api/recording?for=x", 400),
            ("/api/recording?for=2d", 400),
            ("/api/recording?for=0s", 400),
        ):
            found, text = await server.get(path)
            assert (path, found) == (path, status)
            assert status == 200 or set(json.loads(text)) == {"error"}


async def test_a_live_server_is_recorded_and_played_with_the_same_decisions(config, tmp_path):
    file = tmp_path / "now.jsonl.gz"
    async with (
        running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server,
        connected_agent(server.target) as agent,
    ):
        await greet(agent)
        asked = asyncio.create_task(
            run("record", str(file), "--for", "2s", "--admin", server.admin_url)
        )
        while not asked.done():
            for name in INSTANCES:
                await agent.report(name, kv_ratio=0.97, waiting=30.0)
            await asyncio.sleep(0.05)
        done = await asked
        assert done.exit_code == 0, done.output
        assert "evaluations in" in done.stdout
    done = await run("replay", str(file), "--config", str(config), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["evaluations"] > 10
    assert found["same_as_recorded"] == found["evaluations"]
    assert found["is_same_policy"]
    assert found["recorded"] == found["other"]
    assert found["config_version"] == config_version(DESIGN)
    assert [each["tier"] for each in found["recorded"]["tiers"]] == [
        "primary",
        "fallback",
        "static",
    ]


async def test_who_goes_away_in_the_middle_of_a_recording_leaves_nothing_behind(config, tmp_path):
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        path = f"{server.admin_url}/api/recording?for=1h"
        async with server.session.get(path) as one, server.session.get(path) as two:
            for each in (one, two):
                assert b'"recording"' in await each.content.readline()
            status, text = await server.get("/api/recording?for=1s")
            assert (status, json.loads(text)["error"]) == (
                409,
                "2 recordings are being made already",
            )

        async def is_free():
            return (await server.get("/api/recording?for=10ms"))[0] == 200

        await until(is_free)


async def test_a_recording_of_a_server_that_ends_says_so(config, tmp_path, monkeypatch):
    file = tmp_path / "now.jsonl.gz"
    has_begun = threading.Event()

    def told(*arguments):
        for line in lines(*arguments):
            has_begun.set()
            yield line

    monkeypatch.setattr("xds_server.commands.recordings.lines", told)
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        asked = asyncio.create_task(
            run("record", str(file), "--for", "5m", "--admin", server.admin_url)
        )
        assert await asyncio.to_thread(has_begun.wait, PATIENCE_S)
        assert await server.stop() == 0
    done = await asked
    assert done.exit_code == 0, done.output
    assert "it ended early: the server ends" in done.stderr
    assert not file.with_name("now.jsonl.gz.part").exists()


@pytest.mark.slow
async def test_nothing_but_the_last_moment_is_lost_when_the_process_is_killed(config, tmp_path):
    state = tmp_path / "state"
    for turn in range(2):
        async with running_server(config, state, ["--grace-s", "0"]) as server:
            await server.event("server_warm")
            for number in range(10):
                await server.post(f"/drain/l4-0?who=me&why={turn}-{number}")
            await until(partial(_drains_on_disk, state, turn), what="the first events on disk")
            for number in range(10, 20):
                await server.post(f"/drain/l4-0?who=me&why={turn}-{number}")
            assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
        there = _drains_on_disk(state, turn)
        assert len(there) >= 10
        assert there == [f"{turn}-{number}" for number in range(len(there))], "only the end is lost"
    async with running_server(config, state, ["--grace-s", "0"]) as server:
        killed = await until(having(server, name="server_was_killed"))
        assert len(killed) == 2
        assert await server.stop() == 0
    last = read(state / "events.db", Query(limit=1))
    assert last[0].name == "server_stopped"


def _drains_on_disk(state: Path, turn: int) -> list[str]:
    """Return the reasons of a turn's orders; nothing before the tenth is there."""
    rows = read(state / "events.db", Query(name="drain_requested", limit=100))
    found = [row.why for row in rows if row.why.startswith(f"{turn}-")]
    return found if len(found) >= 10 else []


@pytest.mark.slow
async def test_who_follows_sees_new_events_also_after_a_restart(config, tmp_path):
    state = tmp_path / "state"
    port = free_port()
    flags = ["--grace-s", "0", "--admin-listen", f"127.0.0.1:{port}"]
    async with running_server(config, state, flags) as server:
        await server.event("server_warm")
        follower = await asyncio.create_subprocess_exec(
            *(os.sys.executable, "-m", "xds_server", "events", "--follow"),
            *("--admin", f"127.0.0.1:{port}"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

        async def line_with(text: str) -> bytes:
            while text.encode() not in (line := await follower.stdout.readline()):
                assert line
            return line

        try:
            async with asyncio.timeout(PATIENCE_S):
                await line_with("config_loaded")
                await server.post("/drain/l4-0?who=me&why=first")
                await line_with("first")
                await server.stop()
                assert b"is it running?" in await follower.stderr.readline()
            async with running_server(config, state, flags) as again, asyncio.timeout(PATIENCE_S):
                await line_with("server_started")
                await again.post("/undrain/l4-0?who=me&why=second")
                assert b"undrain_requested  chat/fallback l4-0" in await line_with("second")
        finally:
            follower.send_signal(signal.SIGINT)
            _, errors = await asyncio.wait_for(follower.communicate(), PATIENCE_S)
        assert follower.returncode == 0, errors


@pytest.mark.slow
async def test_a_full_disk_stops_nothing_and_is_told_and_its_end_too(config, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        flags = ["--grace-s", "0", "--store-file", str(disk / "events.db")]
        async with (
            running_server(config, tmp_path / "state", flags) as server,
            connected_agent(server.target) as agent,
        ):
            await greet(agent)
            await until(having(server, name="server_started"))
            (disk / "ballast").write_bytes(b"x" * free_bytes(disk))
            for number in range(60):
                await server.post(f"/drain/l4-0?who=me&why={'long ' * 30}{number}")
            failed = await server.event("store_write_failed")
            assert "full" in failed["reason"]
            assert await server.metric("fleet_store_failing") == 1
            # The loop goes on, and what happens is still to be seen.
            for _ in range(3):
                await agent.report("a100-0", state=pb.ENGINE_STATE_DOWN)
            await server.event("instance_down", instance="a100-0")
            await until(having(server, name="instance_down"))
            assert "full" in (await server.get_json("/api/events"))["trouble"]
            done = await run("events", "--limit", "1", "--admin", server.admin_url)
            assert "do not reach the disk" in done.stderr
            (disk / "ballast").unlink()
            await server.event("store_write_recovered")
            await until(having(server, name="store_write_recovered"))
            assert await server.metric("fleet_store_failing") == 0
            down = read(disk / "events.db", Query(name="instance_down"))
            assert [each.instance for each in down] == ["a100-0"]
            drains = read(disk / "events.db", Query(name="drain_requested"))
            assert len(drains) == 60


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(
            lambda path: path.write_bytes(b"nonsense " * 999), "store_begun_anew", id="broken"
        ),
        pytest.param(lambda path: path.mkdir(), "store_write_failed", id="folder"),
    ],
)
async def test_a_file_that_cannot_be_used_keeps_nobody_from_starting(config, tmp_path, spoil, told):
    file = tmp_path / "events.db"
    spoil(file)
    flags = ["--grace-s", "0", "--store-file", str(file)]
    async with running_server(config, tmp_path / "state", flags) as server:
        await server.event(told)
        await server.event("server_warm")
        assert (await server.get("/readyz"))[0] == 200
        await until(having(server, name="server_started"))
        if told == "store_write_failed":
            for path, status in (
                ("/api/events/1", 503),
                ("/api/incident?id=1", 503),
                ("/api/incident?at=0s&around=1h", 200),  # Of what waits in memory.
                ("/api/events?model=nope", 503),  # Whether there ever was one cannot be said.
            ):
                found, text = await server.get(path)
                assert (path, found) == (path, status)
                assert status == 200 or "cannot be read" in json.loads(text)["error"]
        assert await server.stop() == 0


async def test_a_read_only_folder_keeps_nobody_from_starting(config, tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        make_read_only(disk)
        flags = ["--grace-s", "0", "--store-file", str(disk / "events.db")]
        async with running_server(config, tmp_path / "state", flags) as server:
            failed = await server.event("store_write_failed")
            assert failed["reason"]
            assert (await having(server, name="server_started")())[0]["id"] is None
            assert await server.stop() == 0
