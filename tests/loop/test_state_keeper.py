"""Keeping the state on disk while the process runs and as it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest

from xds_server.core.model import Topology
from xds_server.ingest.registry import Registry
from xds_server.loop.state_file import StateFile
from xds_server.loop.state_keeper import StateKeeper
from xds_server.observability.metrics import Tally


@pytest.fixture
def keeper(tmp_path):
    keeper = StateKeeper(StateFile(tmp_path), Registry(Topology(models=())), Tally(), lambda: 0.0)
    numbers = iter(range(10))
    fleet = SimpleNamespace(dump=lambda _: {"number": next(numbers)})
    keeper.source = SimpleNamespace(fleet=fleet, is_warm=True)
    return keeper


async def test_the_last_write_is_what_stays_though_an_earlier_one_is_slow(keeper, monkeypatch):
    may_go_on, is_writing = threading.Event(), threading.Event()
    write = keeper.file.write

    def slowly(data):
        if data["brain"]["number"] == 0:
            is_writing.set()
            assert may_go_on.wait(10)
        write(data)

    monkeypatch.setattr(keeper.file, "write", slowly)
    first = asyncio.create_task(keeper.write())
    assert await asyncio.to_thread(is_writing.wait, 10)
    first.cancel()  # As at the end of the process: its thread goes on.
    last = asyncio.create_task(keeper.write())
    await asyncio.wait([last], timeout=0.2)
    may_go_on.set()
    await last
    await asyncio.gather(first, return_exceptions=True)
    assert json.loads(keeper.file.path.read_text())["brain"] == {"number": 1}
