"""A real `xds-server` as the config source of an emulated istiod."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.fakes.adsc import IstiodExitedError, started_istiod
from tests.fakes.ports import free_port
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import running_server
from tests.istio.mcp.rig import FALLBACK, HOST, OURS, PRIMARY, TEXT

NAMES = ("a100-0", "a100-1", "l4-0")
WHY = "rehearsal"
NO_GRACE = ("--grace-s", "0")


def written(tmp_path: Path, *, listen: str = "127.0.0.1:0", **tiers) -> Path:
    document = yaml.safe_load(TEXT)
    document["istio"]["models"][0]["tiers"].update(tiers)
    document["istio"]["config_source"] = {"listen": listen}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


async def target_of(server) -> str:
    return f"127.0.0.1:{(await server.event('config_source_listening'))['port']}"


async def force(server, tier: str) -> None:
    status, text = await server.post(f"/force?tier=chat/{tier}&for=5m&why={WHY}")
    assert status == 202, text


async def test_an_istiod_gets_ready_and_follows_the_plan(tmp_path):
    async with running_server(written(tmp_path), tmp_path / "state", NO_GRACE) as server:
        async with started_istiod(await target_of(server)) as istiod:
            assert istiod.weights(HOST) == {PRIMARY: 100}
            assert list(istiod.kinds("VirtualService")) == ["ai/gpu-xds-chat"]
            await force(server, "fallback")
            await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the forced tier")
            assert await server.metric("fleet_istio_streams") == 1
            assert await server.metric("fleet_istio_objects") == 1
            assert await server.metric("fleet_istio_responses_total") >= 16
            rows = (await server.get_json("/api/events?kind=mesh"))["events"]
            names = [each["name"] for each in rows]
            assert names.count("istiod_connected") == 1
            assert "mesh_object_published" in names
        await server.event("istiod_disconnected", istiod="istiod-0.istio-system")


async def test_a_server_that_is_killed_and_back_changes_nothing(tmp_path):
    listen = f"127.0.0.1:{free_port()}"
    config, state = written(tmp_path, listen=listen, primary=OURS), tmp_path / "state"
    async with started_later(config, state) as (server, istiod):
        await force(server, "fallback")
        await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the forced tier")
        saved = state / "plan.json"
        await until(lambda: saved.exists() and WHY in saved.read_text(), "the order on disk")
        assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
        count = len(istiod.changes)
        assert istiod.weights(HOST) == {FALLBACK: 100}, "what it has it keeps"
        async with running_server(config, state) as again:
            await until(lambda: istiod.connections == 2 and istiod.is_ready, "istiod to be back")
            await again.event("istiod_connected")
            assert istiod.changes[count:] == [], "versions are hashes: equal is equal"
            await force(again, "primary")
            await until(lambda: istiod.weights(HOST) == {PRIMARY: 100}, "the next order")


class started_later:  # noqa: N801 - reads as a function
    """A server and an istiod that outlives it."""

    def __init__(self, config: Path, state: Path) -> None:
        self._server = running_server(config, state, NO_GRACE)

    async def __aenter__(self):
        server = await self._server.__aenter__()
        self._istiod = started_istiod(await target_of(server))
        return server, await self._istiod.__aenter__()

    async def __aexit__(self, *error):
        await self._istiod.__aexit__(*error)
        await self._server.__aexit__(*error)


async def test_an_istiod_that_starts_without_us_ends(tmp_path):
    with pytest.raises(IstiodExitedError):
        async with started_istiod(f"127.0.0.1:{free_port()}"):
            pass


async def test_an_istiod_that_starts_before_anything_is_known_waits(tmp_path):
    config = written(tmp_path)
    async with (
        running_server(config, tmp_path / "state", ("--grace-s", "300")) as server,
        started_istiod(await target_of(server), waits=False) as istiod,
        connected_agent(server.target) as agent,
    ):
        await agent.hello(instances=NAMES)
        await agent.welcome
        await agent.report("a100-0")
        await server.event("istiod_connected", answered=False)
        assert istiod.responses == []
        for name in NAMES:
            await agent.report(name)
        await until(lambda: istiod.is_ready, "istiod to be ready")
        assert istiod.weights(HOST) == {PRIMARY: 100}


async def test_a_changed_file_changes_what_istiod_has_without_a_restart(tmp_path):
    config = written(tmp_path)
    async with (
        running_server(config, tmp_path / "state", NO_GRACE) as server,
        started_istiod(await target_of(server)) as istiod,
    ):
        moved = {"host": "moved.ai.svc.cluster.local", "port": 8000}
        written(tmp_path, primary=moved)
        server.hang_up()
        await until(lambda: istiod.weights(HOST) == {moved["host"]: 100}, "the new host")
        written(tmp_path, primary=moved, listen="nonsense")
        server.hang_up()
        await server.event("config_refused")
        assert istiod.weights(HOST) == {moved["host"]: 100}
        written(tmp_path, primary=moved, listen="127.0.0.1:1")
        server.hang_up()
        await server.event("server_settings_changed")


@pytest.mark.parametrize("left", [None, {"endpoint_picker": {}}], ids=["nothing", "another-way"])
async def test_a_file_that_loses_the_section_takes_no_route_from_the_mesh(tmp_path, left):
    config = written(tmp_path)
    async with (
        running_server(config, tmp_path / "state", NO_GRACE) as server,
        started_istiod(await target_of(server)) as istiod,
    ):
        document = yaml.safe_load(config.read_text())
        document["istio"] = left
        document = {key: each for key, each in document.items() if each is not None}
        config.write_text(yaml.safe_dump(document, sort_keys=False))
        server.hang_up()
        await server.event("server_settings_changed", note="they take effect at the next start")
        await server.event("config_reloaded")
        await force(server, "fallback")
        await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "what runs to go on")
        assert [each.what for each in istiod.changes if each.kind == "VirtualService"] == [
            "added",
            "updated",
        ]


async def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path):
    async with running_server(written(tmp_path), tmp_path / "one", NO_GRACE) as first:
        taken = await target_of(first)
        (tmp_path / "two").mkdir()
        config = written(tmp_path / "two", listen=taken)
        with pytest.raises(
            AssertionError, match=r"choose another with istio\.config_source\.listen"
        ):
            async with running_server(config, tmp_path / "other", NO_GRACE):
                pass
