"""The stream and the files behind the page, without a browser."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from tests.fakes.live_stage import LiveStage, a_model
from tests.fakes.waiting import PATIENCE_S
from xds_server.admin.live_page import MOST_EVENTS


async def message(stream) -> tuple[str, dict]:
    """Read one server-sent event."""
    async with asyncio.timeout(PATIENCE_S):
        text = await anext(stream) if hasattr(stream, "__anext__") else await one(stream)
    name, data = text.strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def one(response) -> str:
    return (await response.content.readuntil(b"\n\n")).decode()


async def test_who_connects_gets_everything_and_then_only_what_changed():
    async with LiveStage().serving() as stage, aiohttp.ClientSession() as session:
        stage.observed = {f"chat-{each}": 5.0 for each in (0, 1, "small")}
        stage.happened("spill_started", model="chat")
        async with session.get(stage.url + "api/stream") as response:
            name, found = await message(response)
            assert name == "state"
            assert set(found) == {"facts", "models", "instances", "proxies", "events"}
            assert [each["name"] for each in found["events"]] == ["spill_started"]
            stage.models = [a_model(pressure=0.7)]
            name, found = await message(response)
            assert name == "change"
            assert set(found) == {"facts", "instances"}
            assert list(found["instances"]) == ["chat-0"]
            stage.happened("spill_stopped", model="chat")
            _, found = await message(response)
            assert [each["name"] for each in found["events"]] == ["spill_stopped"]
            stage.models = []
            _, found = await message(response)
            assert found["models"] == {"chat": None}
            _, found = await message(response)
            assert set(found) == {"facts"}, "a beat, so that silence means a lost connection"


async def test_a_slow_client_is_sent_the_newest_state_and_nothing_waits_for_it():
    stage = LiveStage()
    stream = stage.page._events_for_a_client()
    await message(stream)
    for pressure in range(60):
        stage.models = [a_model(pressure=pressure / 100)]
        stage.happened("level_changed", model="chat", after=str(pressure))
    await asyncio.sleep(0.3)  # it did not ask for more meanwhile
    _, found = await message(stream)
    assert found["instances"]["chat-0"]["pressure"] == 0.59
    assert len(found["events"]) == 60
    for _ in range(MOST_EVENTS + 50):
        stage.happened("level_changed", model="chat")
    _, found = await message(stream)
    assert len(found["events"]) == MOST_EVENTS, "older ones are in the event store"
    await stream.aclose()


async def test_while_nobody_looks_nothing_is_read():
    async with LiveStage().serving() as stage, aiohttp.ClientSession() as session:
        async with session.get(stage.url + "api/stream") as response:
            await message(response)
        await asyncio.sleep(0.6)
        asked = stage.asked_for_proxies
        await asyncio.sleep(1.0)
        assert stage.asked_for_proxies == asked


async def test_the_state_is_to_be_had_once_too():
    async with (
        LiveStage().serving() as stage,
        aiohttp.ClientSession() as session,
        session.get(stage.url + "api/state") as answer,
    ):
        found = await answer.json()
    assert found["models"]["chat"]["tiers"][0]["weight"] == 1000
    assert found["proxies"]["edge-1"]["state"] == "synced"


@pytest.mark.parametrize(
    ("accept", "path", "status", "kind"),
    [
        pytest.param("text/html,*/*", "", 200, "text/html", id="a browser gets the page"),
        pytest.param("*/*", "", 200, "text/plain", id="curl gets the list of paths"),
        pytest.param("*/*", "page/app.js", 200, "text/javascript", id="a script"),
        pytest.param("*/*", "page/__init__.py", 404, "application/json", id="no code of ours"),
        pytest.param("*/*", "page/..%2fapp.py", 404, "text/plain", id="nothing above it"),
    ],
)
async def test_files_are_served_as_what_they_are(accept, path, status, kind):
    async with (
        LiveStage().serving() as stage,
        aiohttp.ClientSession() as session,
        session.get(stage.url + path, headers={"accept": accept}) as answer,
    ):
        assert (answer.status, answer.content_type) == (status, kind)
        if kind in {"text/html", "text/javascript"}:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
