"""A real `xds-server serve` under a test's control, on free ports, stopped by its pid."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


class XdsProcess:
    """One running control plane. Make it with `running_server`."""

    def __init__(self, process: asyncio.subprocess.Process, session: aiohttp.ClientSession):
        self.process = process
        self.session = session
        self.events: list[dict[str, Any]] = []
        self.text = ""
        self._changed = asyncio.Condition()
        self._reader = asyncio.create_task(self._read(), name="server-log")
        self._is_over = False

    @property
    def xds_port(self) -> int:
        return int(self._started()["xds_port"])

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._started()['admin_port']}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.xds_port}"

    def named(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the log events of a name with these fields."""
        return [
            each
            for each in self.events
            if each.get("event") == name and fields.items() <= each.items()
        ]

    async def event(
        self, name: str, *, timeout_s: float = PATIENCE_S, **fields: Any
    ) -> dict[str, Any]:
        """Wait for a log event."""
        async with self._changed:
            try:
                async with asyncio.timeout(timeout_s):
                    while not (found := self.named(name, **fields)):
                        assert not self._is_over, f"the server ended:\n{self.text[-3000:]}"
                        await self._changed.wait()
            except TimeoutError:
                raise AssertionError(f"no {name} {fields} in:\n{self.text[-3000:]}") from None
        return found[0]

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.admin_url + path) as answer:
            return answer.status, await answer.text()

    async def get_json(self, path: str) -> Any:
        status, text = await self.get(path)
        assert status == 200, text
        return json.loads(text)

    async def post(self, path: str) -> tuple[int, str]:
        async with self.session.post(self.admin_url + path) as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str) -> float:
        """Return the sum over the series of a metric."""
        _, text = await self.get("/metrics")
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.split("{")[0].split(" ")[0] == name
        )

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """End this server and return its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
            try:
                await asyncio.wait_for(self.process.wait(), PATIENCE_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        await self._reader
        assert self.process.returncode is not None
        return self.process.returncode

    def _started(self) -> dict[str, Any]:
        return self.named("server_started")[0]

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace")
            async with self._changed:
                self.text += text
                if text.startswith("{"):
                    self.events.append(json.loads(text))
                self._changed.notify_all()
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()


def command(config: Path, state: Path, *flags: str) -> list[str]:
    """Return the command line of a server on free ports."""
    return [
        *(sys.executable, "-m", "xds_server", "serve", str(config)),
        *("--xds-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
        *("--state-dir", str(state), "--log-format", "json", *flags),
    ]


@asynccontextmanager
async def running_server(
    config: Path, state: Path, flags: Sequence[str] = (), *, timeout_s: float = PATIENCE_S
) -> AsyncIterator[XdsProcess]:
    """Run a control plane for as long as the block lasts; it listens when the block begins."""
    process = await asyncio.create_subprocess_exec(
        *command(config, state, *flags),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        limit=2**20,
    )
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        server = XdsProcess(process, session)
        try:
            await server.event("server_started", timeout_s=timeout_s)
            yield server
        finally:
            await server.stop()
