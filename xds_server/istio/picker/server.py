"""The picker's server: ext_proc and the three names that gateways and probes ask the health of.

On a port of its own, but on the event loop of the control plane: a plan is obeyed with the next request.
"""

from __future__ import annotations

import socket
import time

from xds_server import logs
from xds_server.istio.picker.decide import Desk
from xds_server.istio.picker.exchange import Exchange
from xds_server.istio.picker.framing.calls import Call, CallError, Send
from xds_server.istio.picker.framing.frames import Status
from xds_server.istio.picker.framing.server import FramedServer
from xds_server.istio.picker.health import CHECK, WATCH, CheckCall, Health, WatchCall
from xds_server.istio.picker.proto import BadMessageError
from xds_server.listening import bound

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS = f"/{EXT_PROC_SERVICE}/Process"
LIVENESS = "liveness"
READINESS = "readiness"
"""Names of the endpoint picker protocol's health checks, besides the service's own."""
READY_NAMES = ("", READINESS, EXT_PROC_SERVICE)
SAY_EVERY_S = 1.0
"""Gateways that cannot be served are counted each, but logged at most this often."""
MAX_MESSAGE_BYTES = 64 * 2**20
"""Envoy sends as much of a body at once as its buffers hold: a megabyte, or what the operator has set."""


class PickerServer:
    """Serves a desk's decisions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._health = Health((*READY_NAMES, LIVENESS))
        self._listening: socket.socket | None = None
        self._server = FramedServer(
            self._serve,
            max_message_bytes=MAX_MESSAGE_BYTES,
            refused=self.refused,
            failed=self._failed,
        )
        self._say_at = float("-inf")
        self._log = logs.get("picker")
        self.streams = 0
        """Requests that gateways talk about now."""
        self.port: int | None = None
        """Where it listens; None = it does not."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of half messages, and of answers that gateways do not take yet."""
        return self._server.kept.bytes

    def listen(self, host: str, port: int) -> int:
        """Take the port, without serving yet; return it.

        Raises:
            StartError: The address cannot be had.
        """
        purpose, key = "the endpoint picker", "istio.endpoint_picker.listen"
        self._listening = bound(host, port, purpose=purpose, flag=key)
        got: int = self._listening.getsockname()[1]
        self.port = got
        return got

    async def start(self) -> None:
        """Serve; not ready yet."""
        assert self._listening is not None
        self._listening.setblocking(False)
        await self._server.start(self._listening)
        self._health.set((LIVENESS,), serving=True)

    def set_ready(self, *, ready: bool) -> None:
        """Tell gateways and probes whether requests shall come."""
        self._health.set(READY_NAMES, serving=ready)

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, and let those under way end for so long."""
        self.set_ready(ready=False)
        self.port = None
        await self._server.stop(grace_s)
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _serve(self, path: str, send: Send) -> Call | None:
        if path == PROCESS:
            return _ProcessCall(self, self._desk)
        if path == CHECK:
            return CheckCall(self._health)
        if path == WATCH:
            return WatchCall(self._health, send)
        return None

    def refused(self, peer: str, reason: str) -> None:
        """Count a gateway that cannot be served, and say so now and then."""
        self._desk.tally.add("fleet_picker_refusals_total", "", "bad_message")
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            self._log.warning(logs.PICKER_REFUSED, peer=peer, reason=reason[:300])

    def _failed(self, error: BaseException) -> None:
        self._desk.tally.add("fleet_picker_refusals_total", "", "error")
        self._log.error(logs.PICKER_FAILED, error=repr(error), exc_info=error)


class _ProcessCall:
    """One request, as its gateway talks about it."""

    __slots__ = ("_exchange", "_server")

    ends_with_client = True

    def __init__(self, server: PickerServer, desk: Desk) -> None:
        self._exchange = Exchange(desk)
        self._server = server
        server.streams += 1

    def take(self, raw: bytes) -> list[bytes]:
        try:
            return self._exchange.take(raw)
        except BadMessageError as error:
            self._server.refused("", str(error))
            raise CallError(Status.INVALID_ARGUMENT, str(error)[:300]) from None

    def close(self) -> None:
        self._server.streams -= 1
        self._exchange.close()
