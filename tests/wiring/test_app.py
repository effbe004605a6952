"""The whole process inside the test: what happens when a part of it fails."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from tests.fakes.waiting import PATIENCE_S, until
from tests.fakes.xds_process import ROOT
from xds_server import app as module
from xds_server import keeping
from xds_server.app import App
from xds_server.config.load import load_file
from xds_server.config.settings import resolve
from xds_server.core.model import InstanceId
from xds_server.listening import StartError
from xds_server.logs import listed
from xds_server.observability.metrics import Tally
from xds_server.resources.capability import Capability

DESIGN = ROOT / "tests/config/design.yaml"


@pytest.fixture(autouse=True)
def _leave_the_collector_alone(monkeypatch):
    monkeypatch.setattr(module, "tune_gc", lambda: None)
    yield
    structlog.reset_defaults()


def make(tmp_path: Path, **flags) -> App:
    path = tmp_path / "config.yaml"
    if not path.exists():
        path.write_text(DESIGN.read_text())
    given = {
        "xds_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "state_dir": str(tmp_path / "state"),
        "grace_s": 0.0,
    }
    config = load_file(path)
    settings = resolve(flags=given | flags, environ={}, file=config.server)
    return App(path=path, config=config, settings=settings)


@asynccontextmanager
async def running(app: App):
    with capture_logs() as lines:
        task = asyncio.create_task(app.run(), name="app")
        try:
            await until(lambda: app.loop.is_warm or task.done())
            yield lines
        finally:
            app.stop()
            await asyncio.wait_for(task, PATIENCE_S)


def named(lines, event):
    return [each for each in lines if each["event"] == event]


async def test_a_part_that_fails_is_run_again_and_ends_nobody_else(tmp_path, monkeypatch):
    app = make(tmp_path)
    original, calls = app.state.keep, []

    async def failing():
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        await original()

    monkeypatch.setattr(app.state, "keep", failing)
    async with running(app) as lines:
        await until(lambda: len(calls) == 2)
        (failed,) = named(lines, "part_failed")
        assert (failed["part"], failed["again_in_s"]) == ("state", 1.0)


async def test_a_part_that_fails_after_a_long_time_is_run_again_soon(monkeypatch):
    now, pauses, calls = [0.0], [], []

    async def failing():
        calls.append(1)
        if len(calls) < 6:
            now[0] += 0.0 if len(calls) < 5 else 3600.0
            raise ZeroDivisionError

    async def sleep(delay_s):
        pauses.append(delay_s)

    monkeypatch.setattr(keeping.asyncio, "sleep", sleep)
    with capture_logs():
        await keeping.keep("part", failing, lambda: now[0], Tally())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 1.0]


async def test_what_a_proxy_needs_is_tried_again_although_it_asks_once(tmp_path, monkeypatch):
    app = make(tmp_path)
    original, asked = app.loop.add_capability, []

    async def failing(capability):
        asked.append(capability)
        if len(asked) == 1:
            raise ZeroDivisionError
        await original(capability)

    monkeypatch.setattr(app.loop, "add_capability", failing)
    async with running(app) as lines:
        app._wanted.put_nowait(Capability.AGGREGATE)
        await until(lambda: len(asked) == 2)
        assert asked == [Capability.AGGREGATE] * 2
        assert [each["part"] for each in named(lines, "part_failed")] == ["capabilities"]


async def test_a_file_from_which_no_resources_can_be_made_is_kept_out(tmp_path, monkeypatch):
    app = make(tmp_path)
    async with running(app) as lines:
        topology = app.loop.fleet.topology

        def refuse(*_):
            raise ValueError("Envoy would not take it")

        monkeypatch.setattr(app.loop, "_make_builder", refuse)
        app.topology.reload.set()
        await until(lambda: named(lines, "config_refused"))
        assert named(lines, "config_refused")[-1]["problems"] == [
            "no resources can be made of it: Envoy would not take it"
        ]
        assert app.loop.fleet.topology is topology
        assert app.tally.count("fleet_config_reloads_total", "refused") == 1


async def test_a_full_disk_is_told_once_and_its_end_too(tmp_path, monkeypatch):
    app = make(tmp_path)
    async with running(app) as lines:
        await app.state.write()
        with monkeypatch.context() as patch:
            patch.setattr(app.state.file, "write", _full)
            await app.state.write()
            await app.state.write()
        await app.state.write()
        assert len(named(lines, "state_write_failed")) == 1
        assert len(named(lines, "state_write_recovered")) == 1
        assert app.tally.count("fleet_state_writes_total", "failed") == 2


def _full(_):
    raise OSError(28, "No space left on device")


async def test_nothing_is_written_before_anything_was_served(tmp_path):
    app = make(tmp_path)
    await app.state.write()
    assert list((tmp_path / "state").iterdir()) == [], "the trial at the start leaves nothing"


async def test_a_registered_instance_whose_owner_never_returns_is_removed(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text(
        "models: [{name: chat, tiers: [{name: primary, instances: {discover: agents}}, "
        "{name: static, answer: {json: {}}}]}]"
    )
    row = {"model": "chat", "tier": "primary", "name": "n", "host": "10.0.0.9", "port": 80}
    state = {"format": 1, "registered": [row | {"capacity": None}], "brain": {}}
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "plan.json").write_text(json.dumps(state))
    monkeypatch.setattr(module, "EXPIRY_S", 0.05)
    app = make(tmp_path)
    app.registry.forget_after_s = 0.2
    async with running(app):
        assert [each.id for _, _, each in app.loop.fleet.topology.instances()] in (["n"], [])
        await until(lambda: not list(app.loop.fleet.topology.instances()))


async def test_ports_that_are_taken_are_told_in_one_sentence(tmp_path):
    first = make(tmp_path)
    async with running(first) as lines:
        (started,) = named(lines, "server_started")
        for what in ("xds", "admin"):
            second = make(tmp_path, **{f"{what}_listen": f"127.0.0.1:{started[f'{what}_port']}"})
            with pytest.raises(StartError, match=f"--{what}-listen"):
                await second.run()


def test_a_large_fleet_does_not_fill_a_log_line_with_its_names():
    names = [InstanceId(f"i{number:02}") for number in range(25)]
    assert listed(names[:10]) == names[:10]
    assert listed(names) == [*names[:10], "and 15 more"]
    assert listed([]) == []
