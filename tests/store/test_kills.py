"""The store under `kill -9`: fifty times, and nothing but the last moment is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT
from xds_server.store.file import read
from xds_server.store.row import Query

CHAINS, KILLS = 5, 10
WRITER = """
import sys, time
from pathlib import Path
from xds_server.store.row import Kind, Row
from xds_server.store.store import EventStore, Retention
store = EventStore(Path(sys.argv[1]), Retention(keep_s=1e6, max_bytes=2**30))
store.start()
number = 0
while True:
    now = time.time()
    store.add(Row(at_unix_s=now, kind=Kind.DECISION, name=sys.argv[2], text=str(number)))
    print(number, now, flush=True)
    number += 1
    time.sleep(0.002)
"""


async def killed(path: Path, run: str) -> tuple[list[tuple[int, float]], float]:
    """Let a process write for a moment, and kill it; return what it said it added, and when it ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(path), run), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    said = []
    enough = 60 + hash(run) % 80  # Killed at any moment of a batch.
    while len(said) < enough:
        number, at = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).split()
        said.append((int(number), float(at)))
    ended = time.time()
    process.kill()
    rest, _ = await process.communicate()
    said += [(int(n), float(at)) for n, at in (x.split() for x in rest.splitlines() if b" " in x)]
    return said, ended


async def chain(path: Path) -> tuple[int, float]:
    """Kill one process after the other on one file; return how many events there were, and the age of the lost."""
    total, kept, worst_s = 0, 0, 0.0
    for number in range(KILLS):
        said, ended = await killed(path, f"run{number}")
        rows = read(path, Query(name=f"run{number}", limit=5000))
        there = [int(row.text) for row in rows]
        assert there == list(range(len(there)))  # No hole: only the end may be missing.
        worst_s = max([worst_s, *(ended - at for n, at in said if n >= len(there))])
        total += len(said)
        kept += len(there)
    assert kept, "nothing ever reached the disk"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return total, worst_s


@pytest.mark.slow
async def test_fifty_killed_processes_lose_no_more_than_the_last_moment(tmp_path, record_property):
    found = await asyncio.gather(*(chain(tmp_path / f"{n}.db") for n in range(CHAINS)))
    record_property("events", sum(each for each, _ in found))
    # How long a moment is depends on what else the machine does; alone it is the batch of 30 ms and one commit.
    record_property("oldest_lost_s", max(each for _, each in found))
    assert not list(tmp_path.glob("*broken*"))
