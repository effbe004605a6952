"""Processes that the demo starts, watches and ends: every one by its own pid.

Each child writes to a log of its own. Children are ended in the reverse order of their start, also
after Ctrl-C and after errors, and the kernel ends them should this process be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import aiohttp

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1


class DemoError(Exception):
    """The demo cannot go on; the message is one sentence for the user."""


class Child:
    """One running process and its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def tail(self, lines: int = 5) -> str:
        """Return the end of the log."""
        text = self.log.read_text(errors="replace").strip()
        return "\n".join(text.splitlines()[-lines:])

    def require_alive(self) -> None:
        """Raise DemoError when the process has ended."""
        if self.process.returncode is not None:
            raise DemoError(
                f"{self.name} ended with code {self.process.returncode}; the end of {self.log}:\n"
                f"{self.tail()}"
            )

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ask the process to end, and end it when it does not."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Children:
    """All processes of one demo. Use as an async context manager."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.all: list[Child] = []

    async def __aenter__(self) -> Self:
        """Enter without starting anything."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End every child, the last one first, whatever happens meanwhile."""
        for child in reversed(self.all):
            # A second Ctrl-C must not leave processes behind: go on with a shorter grace.
            try:
                await child.stop()
            except asyncio.CancelledError:
                await child.stop(grace_s=0.2)

    async def start(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process whose output goes to `<name>.log`.

        Raises:
            DemoError: there is no such program.
        """
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *map(str, command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **(env or {})},
                    # Ctrl-C on the terminal reaches the demo alone, which then ends the rest in order.
                    start_new_session=True,
                    preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                )
            except OSError as error:
                raise DemoError(f"{name} cannot be started: {error}") from error
        child = Child(name, process, log)
        self.all.append(child)
        return child

    def require_alive(self) -> None:
        """Raise DemoError when a child has ended."""
        for child in self.all:
            child.require_alive()

    async def until(
        self, probe: Callable[[], Awaitable[T | None]], *, what: str, timeout_s: float
    ) -> T:
        """Return the first result of `probe` that is not None; a refused connection is "not yet".

        Raises:
            DemoError: a child ended meanwhile, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.require_alive()
            with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
                if (result := await probe()) is not None:
                    return result
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{what} did not happen within {timeout_s:.0f} s; logs: {self.logs}"
                )
            await asyncio.sleep(0.05)


def _end_with_parent() -> None:
    """In the child: have the kernel send SIGTERM when the parent dies (Linux only)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
