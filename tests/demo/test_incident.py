"""The whole play in its shortest form, as a user sees it: real processes, real Envoys."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from demo.__main__ import SHORTEST_S
from demo.incident import perform
from demo.stage import ROOT
from tests.fakes.envoy import eventually
from tests.fakes.waiting import PATIENCE_S

pytestmark = [pytest.mark.envoy, pytest.mark.slow]


async def start(*arguments: str, temporary: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "160"},
    )


def processes_of(temporary: Path) -> set[int]:
    """Processes whose command line names the play's directory, or that a parent there started."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"TMPDIR={temporary}".encode() in environment:
                found.add(int(entry.name))
    return found


async def test_the_incident_plays_without_a_failed_request(tmp_path):
    began = time.monotonic()
    process = await start("--seconds", str(SHORTEST_S), temporary=tmp_path)
    out, _ = await process.communicate()
    text = out.decode()
    seconds = time.monotonic() - began

    assert process.returncode == 0, text
    assert seconds < 180, "it ends by itself, also on a busy machine"
    assert "No client saw a failed request." in text
    # Spill, death, static answers and recovery were all seen by clients.
    assert re.search(r"first answer of the fallback tier \(llama-3-8b\)", text)
    assert re.search(r"first answer of the static tier \(static\)", text)
    assert re.search(r"a100-1: \w+ -> down", text)
    assert re.search(r"a100-1: recovering -> healthy", text)
    assert "the 70B answers everything again" in text
    assert "never" not in text
    assert not list(tmp_path.glob("gpu-xds-demo-*")), "a good play leaves nothing behind"
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name
)
async def test_an_interrupted_play_leaves_nothing_behind(tmp_path, number):
    process = await start(temporary=tmp_path)
    assert process.stdout is not None
    while b"NORMAL" not in (line := await process.stdout.readline()):
        assert line, "the play ended before it began"
    assert len(processes_of(tmp_path)) >= 10

    process.send_signal(number)
    rest = await asyncio.wait_for(process.stdout.read(), PATIENCE_S)

    assert await process.wait() == 130
    assert b"Traceback" not in rest
    assert b"Logs and configurations" not in rest
    assert not list(tmp_path.glob("gpu-xds-demo-*"))

    async def all_gone() -> bool:
        return not processes_of(tmp_path)

    await eventually(all_gone)


async def test_a_play_that_stays_serves_on_until_somebody_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = io.StringIO()
    playing = asyncio.create_task(
        perform(Console(file=said, width=160), seconds=3.0, keep=False, stays=True), name="play"
    )

    async def stays() -> str:
        if playing.done():
            playing.result()
        found = re.search(r"Look around: (http\S+) stays until Ctrl-C", said.getvalue())
        return found[1] if found else ""

    url = await eventually(stays)
    async with aiohttp.ClientSession() as session, session.get(url + "api/status") as answer:
        assert (await answer.json())["models"]
    playing.cancel()
    assert await asyncio.wait_for(playing, PATIENCE_S) == 1, (
        "three seconds show no recovery, and it says so"
    )
    assert "never seen: a100-1 serving again" in said.getvalue()
