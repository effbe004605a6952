"""What systemd hears of a process, over a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from contextlib import contextmanager

import pytest
import yaml

from fleet_notify import ServiceManager
from tests.fakes.envoy import eventually
from tests.fakes.waiting import PATIENCE_S

FLEET = {
    "models": [
        {
            "name": "chat",
            "tiers": [
                {"name": "primary", "instances": [{"name": "a", "address": "127.0.0.1:9"}]},
                {"name": "static", "answer": {"status": 200, "json": {}}},
            ],
        }
    ]
}


@contextmanager
def manager_socket(address: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + address[1:] if address.startswith("@") else address)
        heard.setblocking(False)
        yield heard


def read(heard: socket.socket) -> list[str]:
    """Return every assignment that came so far."""
    lines: list[str] = []
    while True:
        try:
            lines += heard.recv(4096).decode().splitlines()
        except BlockingIOError:
            return lines


@pytest.fixture(params=["path", "abstract"])
def address(request, tmp_path):
    return str(tmp_path / "notify") if request.param == "path" else f"@gpu-xds-{uuid.uuid4()}"


def test_ready_comes_with_a_line_for_people(address):
    with manager_socket(address) as heard:
        manager = ServiceManager.of_environment({"NOTIFY_SOCKET": address})
        manager.ready("serving\nfleet.yaml")
        manager.tell("one model")
        manager.stopping()
        assert read(heard) == [
            "READY=1",
            "STATUS=serving fleet.yaml",
            "STATUS=one model",
            "STOPPING=1",
        ]


async def test_beats_come_at_half_the_time_of_the_watchdog(address):
    with manager_socket(address) as heard:
        manager = ServiceManager.of_environment(
            {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
        )
        assert manager.watchdog_s == 0.02
        beating = asyncio.create_task(manager.beat())
        beats: list[str] = []

        async def three() -> bool:
            beats.extend(read(heard))
            return len(beats) >= 3

        await eventually(three)
        beating.cancel()
        assert set(beats) == {"WATCHDOG=1"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"NOTIFY_SOCKET": "/nobody/is/there"},
        {"NOTIFY_SOCKET": "@nobody-is-there"},
        {"NOTIFY_SOCKET": "/" + "x" * 300},
    ],
    ids=["none", "empty", "relative", "vsock", "gone", "gone, abstract", "too long"],
)
async def test_a_manager_that_does_not_listen_ends_nothing(environment):
    manager = ServiceManager.of_environment(environment)
    manager.ready("serving")
    manager.stopping()
    await asyncio.wait_for(manager.beat(), 1)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
    ids=["none", "zero", "no number", "negative", "meant for another process"],
)
async def test_nobody_beats_where_no_watchdog_waits(variables):
    manager = ServiceManager.of_environment({"NOTIFY_SOCKET": "/x"} | variables)
    assert manager.watchdog_s is None
    await asyncio.wait_for(manager.beat(), 1)


def test_a_full_queue_is_not_waited_for(address):
    with manager_socket(address):
        manager = ServiceManager.of_environment({"NOTIFY_SOCKET": address})
        for _ in range(10_000):
            manager.tell("busy")


@pytest.mark.parametrize("program", ["server", "agent"])
async def test_the_process_says_that_it_is_ready_beats_and_says_that_it_stops(program, tmp_path):
    address = str(tmp_path / "notify")
    config = tmp_path / "fleet.yaml"
    config.write_text(yaml.safe_dump(FLEET))
    server = f"xds_server serve {config} --state-dir={tmp_path / 'state'}"
    commands = {
        "server": f"{server} --xds-listen=127.0.0.1:0 --admin-listen=127.0.0.1:0",
        "agent": "sidecar_agent run --gpu=none --admin=127.0.0.1:0 --control-plane=127.0.0.1:9 "
        "--instance=a=http://127.0.0.1:9",
    }
    with manager_socket(address) as heard:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *commands[program].split()),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"},
        )
        lines: list[str] = []

        async def beats(count: int) -> bool:
            lines.extend(read(heard))
            return lines.count("WATCHDOG=1") >= count

        try:
            await eventually(lambda: beats(3))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        lines += read(heard)
    assert lines[0] == "READY=1"
    assert lines[1].startswith("STATUS=")
    assert "STOPPING=1" in lines
