"""Keeps the state file up to date, and starts from it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from xds_server import logs
from xds_server.clock import Clock
from xds_server.fleet import Fleet
from xds_server.ingest.registry import Registry
from xds_server.loop.state_file import StateError, StateFile, dump_registered, load_registered
from xds_server.observability.metrics import Tally

DELAY_S = 1.0
"""A publication is on disk this much later; more publications meanwhile are one write."""
PAUSE = 30.0
"""It waits for this many times the processor time of the last write, if that is longer: ten thousand
instances take 0.2 s, which the control loop misses."""
REFRESH_S = 30.0
"""What was learned without publishing anything is written this often."""


class Source(Protocol):
    """Where the state to keep comes from (the control loop)."""

    @property
    def fleet(self) -> Fleet:
        """The fleet as it is now."""
        ...

    @property
    def is_warm(self) -> bool:
        """Whether anything was served yet."""
        ...


class StateKeeper:
    """Reads at the start, writes after changes; a disk that fails costs a warning."""

    def __init__(self, file: StateFile, registry: Registry, tally: Tally, clock: Clock) -> None:
        self.file = file
        self.changed = asyncio.Event()
        """Set it when something worth keeping changed."""
        self.source: Source | None = None
        self.parts: Callable[[], Mapping[str, float]] = dict
        """Each proxy's part of the limits, as it is now."""
        self._registry = registry
        self._tally = tally
        self._clock = clock
        self._read: dict[str, Any] | None = None
        self._is_failing = False
        self._cost_s = 0.0
        self._writing = threading.Lock()
        self._log = logs.get("state")

    def read(self) -> None:
        """Read the file; the instances registered in it go to the registry.

        Whether it can be written is tried at once: the first real write comes too late to be noticed.
        """
        try:
            self.file.try_write()
        except OSError as error:
            self._fail(error)
        try:
            state = self.file.read()
            if state is not None:
                registered = load_registered(state.get("registered", []))
                self._registry.adopt(registered, self._clock())
        except StateError as error:
            self._say_unusable(str(error))
        else:
            self._read = state

    def restore(self, fleet: Fleet) -> bool:
        """Continue with what was read; return whether there was anything to continue with."""
        if self._read is None:
            return False
        try:
            fleet.restore(self._read["brain"], self._clock(), away_s=self._away_s())
        except Exception as error:  # noqa: BLE001 - whatever is in that file, the server starts
            self._say_unusable(repr(error))
            return False
        age_s = round(self._away_s(), 1)
        self._log.info(logs.STATE_RESTORED, file=str(self.file.path), age_s=age_s)
        return True

    def _away_s(self) -> float:
        """Return how long ago what was read was written."""
        written_unix_s = (self._read or {}).get("written_unix_s", 0.0)
        return max(0.0, time.time() - float(written_unix_s))

    def read_parts(self) -> dict[str, float]:
        """Return the proxies' parts of the limits as they were read; none if they cannot be used."""
        parts = (self._read or {}).get("parts")
        if not isinstance(parts, dict):
            return {}
        return {
            name: float(part)
            for name, part in parts.items()
            if isinstance(part, int | float) and not isinstance(part, bool)
        }

    async def keep(self) -> None:
        """Write after changes until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self.changed.wait()
            await asyncio.sleep(max(DELAY_S, PAUSE * self._cost_s))
            await self.write()

    async def write(self) -> None:
        """Write now, in a thread; never raises."""
        self.changed.clear()
        if self.source is None or not self.source.is_warm:
            return  # Nothing was served yet: an older file is worth more.
        try:
            data = {
                "written_unix_s": round(time.time(), 3),
                "registered": dump_registered(self._registry.registered()),
                "parts": dict(self.parts()),
                "brain": self.source.fleet.dump(self._clock()),
            }
            await asyncio.to_thread(self._write, data)
        except Exception as error:  # noqa: BLE001 - a full disk must not stop the loop
            self._fail(error)
            return
        self._tally.add("fleet_state_writes_total", "written")
        if self._is_failing:
            self._log.info(logs.STATE_WRITE_RECOVERED, file=str(self.file.path))
        self._is_failing = False

    def _fail(self, error: Exception) -> None:
        self._tally.add("fleet_state_writes_total", "failed")
        if not self._is_failing:
            path = str(self.file.path)
            self._log.warning(logs.STATE_WRITE_FAILED, file=path, reason=str(error))
        self._is_failing = True

    def _write(self, data: dict[str, Any]) -> None:
        # The end of the process cancels `keep`, but not its thread: what that writes is older than the last write.
        with self._writing:
            started = time.thread_time()
            try:
                self.file.write(data)
            finally:
                self._cost_s = time.thread_time() - started

    def _say_unusable(self, reason: str) -> None:
        path = str(self.file.path)
        self._log.warning(logs.STATE_UNUSABLE, file=path, reason=reason, note="starting without it")
