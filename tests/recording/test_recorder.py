"""Recording a fleet that lives."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.fakes.recorded_fleet import drive
from xds_server.fleet import Fleet
from xds_server.recording import recorder
from xds_server.recording.format import STILL_HERE
from xds_server.recording.recorder import Recorder, TooManyError
from xds_server.recording.replay import replay


def make_recorder(fleet: Fleet) -> Recorder:
    return Recorder(
        fleet=lambda: fleet,
        clock=asyncio.get_running_loop().time,
        config_version=lambda: "v",
        wall=lambda: 5.0,
    )


async def test_a_recorder_gives_lines_until_the_time_is_over(fleet, path):
    made = make_recorder(fleet)
    lines = made.record(0.3)
    text = await anext(lines)
    assert json.loads(text)["config_version"] == "v"
    drive(fleet, start=100.0, seconds=1)
    async for each in lines:
        text += each
    assert json.loads(text.splitlines()[-1]) == {"end": ""}
    assert not fleet.watchers
    path.write_bytes(text)
    assert replay(path, None, None).same_as_recorded == 4


async def test_who_is_too_slow_gets_a_recording_that_says_so(fleet, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_STEPS", 3)
    lines = make_recorder(fleet).record(30.0)
    await anext(lines)
    drive(fleet, start=100.0, seconds=3)
    rest = [each async for each in lines]
    assert json.loads(rest[-1])["end"] == "more than 3 evaluations waited to be sent"


async def test_while_nothing_is_decided_it_is_said_that_somebody_is_there(fleet, monkeypatch):
    monkeypatch.setattr(recorder, "QUIET_S", 0.0)
    lines = make_recorder(fleet).record(0.5)
    await anext(lines)
    rest = [each async for each in lines]
    assert set(rest[:-1]) == {STILL_HERE}
    assert json.loads(rest[-1]) == {"end": ""}


async def test_a_server_that_ends_ends_its_recordings(fleet):
    made = make_recorder(fleet)
    lines = made.record(600.0)
    await anext(lines)
    made.is_ending.set()
    assert [json.loads(each) async for each in lines] == [{"end": "the server ends"}]


async def test_only_some_record_at_the_same_time(fleet):
    made = make_recorder(fleet)
    running = [made.record(60.0) for _ in range(recorder.MOST_AT_ONCE)]
    for each in running:
        await anext(each)
    with pytest.raises(TooManyError, match="2 recordings"):
        made.record(60.0)
    for each in running:
        await each.aclose()
    assert not fleet.watchers
    await made.record(1.0).aclose()
