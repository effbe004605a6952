"""Records a running fleet for whoever asks, as lines that are written in a thread.

The control loop only appends to a queue. Who cannot take the lines as fast as they come gets a recording
that ends early and says so; nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from xds_server.clock import Clock
from xds_server.fleet import Fleet, Step
from xds_server.recording.format import STILL_HERE, Digests, Head, end_line, head_line, step_lines

PAUSE_S = 0.2
"""Steps of this time are written together."""
MOST_STEPS = 5000
"""Steps that may wait; at 50 evaluations per second that is more than a minute."""
MOST_AT_ONCE = 2
"""Recordings at the same time."""
QUIET_S = 5.0
"""Where nothing is decided for so long an empty line is sent: who waits gives up on a server that says nothing."""


class TooManyError(Exception):
    """There are enough recordings already."""


class Recorder:
    """Hands out recordings of one fleet."""

    def __init__(
        self,
        *,
        fleet: Callable[[], Fleet],
        clock: Clock,
        config_version: Callable[[], str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._config_version = config_version
        self._wall = wall
        self._running = 0
        self.is_ending = asyncio.Event()
        """Set it when the process ends."""

    def record(self, span_s: float) -> AsyncIterator[bytes]:
        """Begin to record; the lines come until the time is over.

        Raises:
            TooManyError: Others record already.
        """
        if self._running >= MOST_AT_ONCE:
            raise TooManyError(f"{self._running} recordings are being made already")
        return self._lines(span_s)

    async def _lines(self, span_s: float) -> AsyncIterator[bytes]:
        fleet = self._fleet()
        waiting: deque[Step] = deque()
        is_over = False

        def watch(step: Step) -> None:
            nonlocal is_over
            if len(waiting) >= MOST_STEPS:
                is_over = True
            if not is_over:
                waiting.append(step)

        head = Head(
            start=self._clock(),
            unix_s=self._wall(),
            config_version=self._config_version(),
            topology=fleet.topology,
            policy=fleet.policy,
            memory=fleet.remember(),
        )
        digests = Digests()
        self._running += 1
        fleet.watchers.append(watch)
        reason = ""
        try:
            yield await asyncio.to_thread(head_line, head)
            end, told_at = head.start + span_s, self._clock()
            while not is_over and not self.is_ending.is_set() and (left := end - self._clock()) > 0:
                await asyncio.sleep(min(PAUSE_S, left))
                steps = list(waiting)
                waiting.clear()
                if steps:
                    told_at = self._clock()
                    yield await asyncio.to_thread(step_lines, steps, digests)
                elif self._clock() - told_at >= QUIET_S:
                    told_at = self._clock()
                    yield STILL_HERE
            if is_over:
                reason = f"more than {MOST_STEPS} evaluations waited to be sent"
            elif self.is_ending.is_set():
                reason = "the server ends"
            yield end_line(reason)
        finally:
            fleet.watchers.remove(watch)
            self._running -= 1
