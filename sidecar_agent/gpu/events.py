"""The XID watcher: a daemon thread that waits for the driver's critical events.

Waiting is the only way to hear of an XID: events have neither history nor time. Where waiting is not
supported (vGPU guests, WSL2, some containers) there is no watcher, and that is not a fault. Each way to
fail is said once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from sidecar_agent.gpu.calls import NvmlCalls, address_of
from sidecar_agent.gpu.devices import Device
from sidecar_agent.gpu.notices import Notices
from sidecar_agent.gpu.status import (
    FATAL,
    LOST,
    UNSUPPORTED,
    NvmlStatus,
    NvmlStatusError,
    status_text,
)
from sidecar_agent.gpu.xid import Place, XidLedger

log = structlog.get_logger(__name__)

_XID_CRITICAL = 0x8
"""nvmlEventTypeXidCriticalError."""

_WHOLE_GPU = 0xFFFFFFFF
"""The GPU instance of an event that concerns all of a GPU."""

_WAIT_MS = 250
"""How long one wait lasts: the longest that closing has to wait for the watcher."""

_RETRY_FIRST_S = 1.0
_RETRY_CAP_S = 30.0


@dataclass(slots=True)
class _Wait:
    """What one watcher thread waits on."""

    events: Any
    stop: threading.Event = field(default_factory=threading.Event)
    is_left_behind: bool = False


class XidWatcher:
    """Listens on a session's GPUs. `listen` and `stop` belong to the thread that owns the session."""

    def __init__(
        self,
        calls: NvmlCalls,
        ledger: XidLedger,
        *,
        on_trouble: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._ledger = ledger
        self._on_trouble = on_trouble
        self._clock = clock
        self._notices = Notices()
        self._watched: frozenset[str] = frozenset()
        self._places: dict[int, str] = {}
        self._wait: _Wait | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_listening(self) -> bool:
        """Whether a thread waits for events."""
        return self._thread is not None and self._thread.is_alive()

    def listen(self, gpus: Iterable[Device]) -> None:
        """Listen on these GPUs; does nothing where it already does, or where no GPU can be heard."""
        wanted = tuple(gpus)
        uuids = frozenset(gpu.uuid for gpu in wanted)
        if uuids <= self._watched:
            return
        self.stop()
        self._watched = uuids
        self._places = {address_of(gpu.handle): gpu.uuid for gpu in wanted}
        try:
            events = self._calls.call("nvmlEventSetCreate")
        except NvmlStatusError as error:
            self._deaf("create", error)
            return
        heard = [gpu for gpu in wanted if self._register(gpu, events)]
        if not heard:
            self._free(events)
            return
        self._wait = _Wait(events)
        self._thread = threading.Thread(
            target=self._run, args=(self._wait,), name="gpu-xid", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; waits for at most two waits of the watcher, then leaves it behind."""
        if self._thread is not None and self._wait is not None:
            self._wait.stop.set()
            self._thread.join(2 * _WAIT_MS / 1000)
            # A wait that hangs may come back in a later session, in which its event set is none.
            self._wait.is_left_behind = self._thread.is_alive()
        self._thread = None
        self._watched = frozenset()

    def _register(self, gpu: Device, events: Any) -> bool:
        try:
            supported = self._calls.call("nvmlDeviceGetSupportedEventTypes", gpu.handle)
            if not supported & _XID_CRITICAL:
                raise NvmlStatusError(NvmlStatus.NOT_SUPPORTED, "nvmlDeviceRegisterEvents")
            self._calls.call("nvmlDeviceRegisterEvents", gpu.handle, _XID_CRITICAL, events)
        except NvmlStatusError as error:
            self._deaf(gpu.uuid, error)
            return False
        return True

    def _deaf(self, subject: str, error: NvmlStatusError) -> None:
        if self._notices.changed(f"deaf {subject}", error.status):
            quiet = error.status in UNSUPPORTED
            (log.info if quiet else log.warning)(
                "gpu_xid_watch_unavailable", gpu=subject, call=error.call, reason=error.text
            )

    def _run(self, wait: _Wait) -> None:
        retry_s = _RETRY_FIRST_S
        while not wait.stop.is_set():
            try:
                event = self._calls.call("nvmlEventSetWait_v2", wait.events, _WAIT_MS)
            except NvmlStatusError as error:
                if error.status == NvmlStatus.TIMEOUT:
                    retry_s = _RETRY_FIRST_S
                    continue
                if not self._survives(error):
                    break
                wait.stop.wait(retry_s)
                retry_s = min(_RETRY_CAP_S, retry_s * 2)
            else:
                self._take(event)
        if not wait.is_left_behind:
            self._free(wait.events)

    def _survives(self, error: NvmlStatusError) -> bool:
        """Say what went wrong, once per way; False where waiting again is of no use."""
        if self._notices.changed(f"wait {error.status}", True):
            log.warning("gpu_xid_watch_failed", reason=status_text(error.status))
        if error.status in LOST:
            # The driver does not say which GPU: the next reading will.
            self._on_trouble()
        return error.status not in UNSUPPORTED and error.status not in FATAL

    def _take(self, event: Any) -> None:
        if not event.eventType & _XID_CRITICAL:
            return
        uuid = self._places.get(address_of(event.device))
        if uuid is None:
            try:
                uuid = self._calls.call("nvmlDeviceGetUUID", event.device)
            except NvmlStatusError as error:
                log.warning("gpu_xid_unplaced", xid=event.eventData, reason=error.text)
                return
        instance = None if event.gpuInstanceId == _WHOLE_GPU else event.gpuInstanceId
        self._ledger.record(Place(uuid, instance), int(event.eventData), now=self._clock())

    def _free(self, events: Any) -> None:
        """Give the event set back; on the watcher's own thread, so that no wait uses a freed set."""
        try:
            self._calls.call("nvmlEventSetFree", events)
        except NvmlStatusError as error:
            if self._notices.changed(f"free {error.status}", True):
                log.info("gpu_xid_watch_not_freed", reason=error.text)
