"""The one thread that talks to the driver.

A call into a wedged driver may never return, and the event loop must not notice: reads happen on a
daemon thread, one call at a time, and `latest` never waits. (With `asyncio.to_thread` the loop's
shutdown would wait for the call.) A call that takes longer than its deadline makes the snapshot STALLED;
no second call is started behind it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from sidecar_agent.gpu.facts import DriverState, GpuSnapshot
from sidecar_agent.gpu.notices import Notices
from sidecar_agent.gpu.reader import GpuReader, faded
from sidecar_agent.gpu.xid import XidLedger

log = structlog.get_logger(__name__)


class GpuWorker:
    """Reads GPUs every `interval_s` and keeps the newest snapshot.

    Every method may be called from any thread; only `close` waits.
    """

    def __init__(
        self,
        reader: GpuReader,
        *,
        ledger: XidLedger | None = None,
        interval_s: float = 1.0,
        deadline_s: float = 2.0,
        open_deadline_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            reader: What is read; used by the worker's thread only.
            ledger: XIDs to show in snapshots, also while the driver hangs.
            interval_s: Pause between readings.
            deadline_s: A reading that takes longer is STALLED.
            open_deadline_s: The same for opening: without persistence mode the driver initializes the
                GPUs first, which takes seconds.
            clock: Monotonic seconds.
        """
        self._reader = reader
        self._ledger = ledger
        self._interval_s = interval_s
        self._deadline_s = deadline_s
        self._open_deadline_s = open_deadline_s
        self._clock = clock
        self._notices = Notices()
        self._published = GpuSnapshot(driver=DriverState.STARTING)
        # (since, deadline) of the call in flight. One reference, swapped whole: no lock needed.
        self._in_flight: tuple[float, float] | None = None
        self._wake = threading.Event()
        self._is_closing = False
        self._is_released = False
        self._listener: tuple[asyncio.AbstractEventLoop, Callable[[], object]] | None = None
        self._thread = threading.Thread(target=self._run, name="gpu-reader", daemon=True)
        if ledger is not None:
            ledger.subscribe(self._on_fault)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def attach(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        """Call back on an event loop after every reading and when an XID takes a GPU out."""
        self._listener = (loop, callback)

    def latest(self) -> GpuSnapshot:
        """Return the newest snapshot; its age is now minus `read_at`.

        While a call hangs the snapshot is STALLED and holds no numbers.
        """
        snapshot, in_flight, now = self._published, self._in_flight, self._clock()
        if in_flight is not None and now - in_flight[0] > in_flight[1]:
            detail = f"the driver has not answered within {in_flight[1]:g} s"
            snapshot = faded(snapshot, driver=DriverState.STALLED, detail=detail)
        return self._ledger.overlay(snapshot, now=now) if self._ledger else snapshot

    @property
    def xids(self) -> Mapping[tuple[str, int], int]:
        """XIDs since the start, by GPU and XID."""
        return {} if self._ledger is None else self._ledger.counts

    def request(self) -> None:
        """Read now instead of at the end of the pause."""
        self._wake.set()

    def release(self) -> None:
        """Let go of the driver until `reacquire`: for upgrades and GPU resets."""
        self._is_released = True
        self._wake.set()

    def reacquire(self) -> None:
        """Take the driver up again after `release`."""
        self._is_released = False
        self._wake.set()

    def close(self, *, grace_s: float = 1.0) -> bool:
        """Stop reading and let go of the driver; safe to call twice.

        Waits for at most `grace_s` (plus nothing for a call that is overdue already): a hung driver is
        left behind on its daemon thread.

        Returns:
            Whether the driver was let go of.
        """
        self._is_closing = True
        self._listener = None
        self._wake.set()
        if not self._thread.is_alive():
            return True
        in_flight = self._in_flight
        overdue = in_flight is not None and self._clock() - in_flight[0] > in_flight[1]
        if not overdue:
            self._thread.join(grace_s)
        if self._thread.is_alive():
            log.warning("gpu_driver_left_behind", reason="a call into the driver does not return")
            return False
        return True

    def _run(self) -> None:
        is_open = False
        while not self._is_closing:
            self._wake.clear()
            if self._is_released:
                if is_open:
                    self._guarded(self._reader.close)
                    is_open = False
                self._publish_released()
                self._wait(None)
                continue
            if not is_open:
                self._guarded(self._reader.open, deadline_s=self._open_deadline_s)
                is_open = True
            if not self._is_closing:
                self._guarded(self._read)
            self._wait(self._interval_s)
        if is_open:
            self._guarded(self._reader.close)

    def _publish_released(self) -> None:
        detail = "the driver was released on request"
        snapshot = faded(self._published, driver=DriverState.RELEASED, detail=detail)
        self._publish(replace(snapshot, restart_needed=False))

    def _wait(self, timeout_s: float | None) -> None:
        """Pause; ends at once when something was asked for meanwhile."""
        if not self._is_closing:
            self._wake.wait(timeout_s)

    def _read(self) -> None:
        self._publish(self._reader.read())

    def _guarded(self, step: Callable[[], None], *, deadline_s: float | None = None) -> None:
        """Run one step with its deadline; an unforeseen error is a failed reading, not the end."""
        since, deadline_s = self._clock(), deadline_s or self._deadline_s
        self._in_flight = (since, deadline_s)
        try:
            step()
        except Exception as error:
            if self._notices.changed("error", repr(error)):
                log.exception("gpu_reader_failed")
            self._publish(
                faded(self._published, driver=DriverState.FAILED, detail=f"internal: {error!r}")
            )
        finally:
            self._in_flight = None
        took = self._clock() - since
        if took > deadline_s:
            log.warning("gpu_driver_was_slow", seconds=round(took, 1), deadline_s=deadline_s)
            # What it read is as old as the call: do not pause before the next one.
            self.request()

    def _publish(self, snapshot: GpuSnapshot) -> None:
        self._published = snapshot
        self._notify()

    def _on_fault(self) -> None:
        self.request()
        self._notify()

    def _notify(self) -> None:
        listener = self._listener
        if listener is None:
            return
        loop, callback = listener
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop is closed: nobody listens any more.
            self._listener = None
