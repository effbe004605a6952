"""The stream to the control plane: hello first, newest samples out, acks and refusals in.

One bidirectional stream per agent. It is re-made with full-jitter back-off for as long as the agent
lives. A channel is made anew for every attempt, so that gRPC's own back-off (two minutes by default)
never adds to ours. While a write is pending, newer samples replace older ones in their slots: nothing
queues up behind a slow network.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from sidecar_agent import encode
from sidecar_agent.backoff import Backoff
from sidecar_agent.join import Sample
from sidecar_agent.slots import Slots

METHOD: Final = "/fleet.telemetry.v1.Telemetry/Report"
_ANY_METHOD: Final = "/grpc.health.v1.Health/Check"
CONNECT_S: Final = 5.0
WELCOME_S: Final = 10.0
CLOSE_S: Final = 0.5
"""How long the last goodbye may take; SIGTERM has to end the process within two seconds."""
MAX_MESSAGE_BYTES: Final = 4 * 2**20
MIN_INTERVAL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the control plane is and how to reach it."""

    address: str
    ca: Path | None = None
    """PEM roots; set = TLS."""
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""
    keepalive_s: float = 20.0
    keepalive_timeout_s: float = 10.0
    """A half-open connection is noticed after the sum of both: 30 s."""

    def options(self) -> list[tuple[str, Any]]:
        """Return the channel options."""
        options: list[tuple[str, Any]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", round(self.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.keepalive_timeout_s * 1000)),
            # Without this a missing ping reply is believed in for a minute, whatever the line above
            # says (measured with grpcio 1.85: a half-open connection lived for > 60 s).
            ("grpc.http2.ping_timeout_ms", round(self.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 10_000),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
        ]
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        return options

    def channel(self) -> grpc.aio.Channel:
        """Open a channel; reads the TLS files, so that rotated certificates are picked up."""
        if self.ca is None:
            return grpc.aio.insecure_channel(self.address, options=self.options())
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes(),
            private_key=self.key.read_bytes() if self.key else None,
            certificate_chain=self.cert.read_bytes() if self.cert else None,
        )
        return grpc.aio.secure_channel(self.address, credentials, options=self.options())


@dataclass(slots=True, kw_only=True)
class Status:
    """What the stream is and has seen; read by the admin pages."""

    connected: bool = False
    detail: str = "not connected yet"
    connected_at: float | None = None
    last_sent_at: float | None = None
    last_ack_at: float | None = None
    server_version: str = ""
    streams: int = 0
    """Streams that were welcomed."""
    messages: int = 0
    samples: int = 0
    refused_stream: encode.Refusal | None = None
    refusals: dict[str, encode.Refusal] = field(default_factory=dict)
    taken: dict[str, encode.Taken] = field(default_factory=dict)


async def trouble(channel: grpc.aio.Channel) -> str:
    """Return why the channel does not connect within `CONNECT_S`, or nothing; the first failure is an answer.

    `channel_ready` would go on trying by gRPC's own back-off.
    """
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(CONNECT_S):
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return await _why(channel)
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return f"no answer within {CONNECT_S:g} s"
    return ""


async def _why(channel: grpc.aio.Channel) -> str:
    """Return what gRPC says of a connection that failed: only a call is told."""
    try:
        await channel.unary_unary(_ANY_METHOD)(b"", timeout=1.0)
    except grpc.aio.AioRpcError as error:
        said = str(error.details() or error.code().name)
        return said.rpartition("last error: ")[2]
    return "it failed a moment ago"


class _StreamEndedError(Exception):
    """The stream is over; the text says why."""

    def __init__(self, what: str, why: str = "") -> None:
        super().__init__(f"{what}: {why}" if why else what)
        self.what = what
        """As long as it is the same it is no news: the rest may name one of several addresses."""


async def _ended(call: Any) -> _StreamEndedError:
    code, details = await call.code(), await call.details()
    return _StreamEndedError(f"the server ended the stream ({code.name}: {details})")


class Uplink:
    """Keeps one stream to the control plane and sends what is worth sending."""

    def __init__(
        self,
        server: Server,
        *,
        token: Callable[[], str],
        hello: Callable[[], bytes],
        interval_s: float,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.status = Status()
        self.slots = Slots(interval_s=interval_s)
        self.server = server
        self._token = token
        self._hello = hello
        self._interval_s = interval_s
        self._clock = clock
        self._backoff = Backoff(rng)
        self._wake = asyncio.Event()
        self._closing = False
        self._log: Any = structlog.get_logger("uplink")
        self._last_failure = ""

    def offer(self, sample: Sample) -> None:
        """Hand over a sample; it replaces the one that waits."""
        self.slots.offer(sample)
        self._wake.set()

    async def run(self) -> None:
        """Stream until cancelled."""
        while True:
            lived_s = await self._attempt()
            await asyncio.sleep(self._backoff.ended(lived_s))

    async def _attempt(self) -> float:
        """Run one stream to its end and return for how long it was welcome."""
        status = self.status
        status.connected_at = None
        try:
            await self._stream()
        except _StreamEndedError as ended:
            self._failed(str(ended), once=ended.what)
        except grpc.aio.AioRpcError as error:
            self._failed(f"{error.code().name}: {error.details()}")
        except OSError as error:  # a file of TLS, or of the token
            self._failed(f"cannot open the channel: {error}")
        finally:
            status.connected = False
        return 0.0 if status.connected_at is None else self._clock() - status.connected_at

    async def _stream(self) -> None:
        channel = self.server.channel()
        try:
            if why := await trouble(channel):
                raise _StreamEndedError(f"no connection to {self.server.address}", why)
            token = self._token()
            metadata = [("authorization", f"Bearer {token}")] if token else []
            call = channel.stream_stream(METHOD)(metadata=metadata)
            try:
                await self._talk(call)
            except (asyncio.InvalidStateError, grpc.aio.UsageError):
                # A write after the server's end; the call knows why that came.
                raise await _ended(call) from None
            finally:
                call.cancel()
        finally:
            await channel.close()

    async def _talk(self, call: Any) -> None:
        await call.write(self._hello())
        try:
            async with asyncio.timeout(WELCOME_S):
                await self._welcome(call)
        except TimeoutError:
            raise _StreamEndedError(f"no welcome within {WELCOME_S:g} s") from None
        reader = asyncio.create_task(self._receive(call), name="uplink-receive")
        sender = asyncio.create_task(self._send(call), name="uplink-send")
        try:
            try:
                await asyncio.wait({reader, sender}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await self._say_goodbye(call, reader, sender)
                raise
            # When a write failed, the reader knows the server's own reason a moment later.
            await asyncio.wait({reader}, timeout=0.0 if reader.done() else 1.0)
            for task in (reader, sender):
                if task.done():
                    task.result()
        finally:
            reader.cancel()
            sender.cancel()
            await asyncio.gather(reader, sender, return_exceptions=True)

    async def _say_goodbye(
        self, call: Any, reader: asyncio.Task[None], sender: asyncio.Task[None]
    ) -> None:
        """Half-close the stream and let the server end it: an end that was meant is no failure.

        Both tasks end by themselves, because cancelling a read or a write of grpc.aio cancels the call.
        """
        self._closing = True
        self._wake.set()
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await asyncio.wait({sender}, timeout=CLOSE_S / 2)
            if sender.done():
                await call.done_writing()
                await asyncio.wait({reader}, timeout=CLOSE_S)

    async def _welcome(self, call: Any) -> None:
        while True:
            match await self._read(call):
                case encode.Welcome(interval_s=interval_s, server_version=version):
                    self._welcomed(interval_s, version)
                    return
                case encode.Refusal() as refusal:
                    self._refused(refusal)
                case _:
                    continue

    async def _receive(self, call: Any) -> None:
        while True:
            match await self._read(call):
                case encode.Welcome(interval_s=interval_s):
                    self._obey(interval_s)
                    self._wake.set()
                case encode.Refusal() as refusal:
                    self._refused(refusal)
                case encode.Ack(taken=taken):
                    self.status.last_ack_at = self._clock()
                    self.status.taken.update(taken)
                    for instance in taken:
                        self.status.refusals.pop(instance, None)
                case None:
                    continue

    async def _read(self, call: Any) -> encode.Welcome | encode.Refusal | encode.Ack | None:
        raw = await call.read()
        if raw is grpc.aio.EOF:
            raise await _ended(call)
        try:
            return encode.decode(raw)
        except encode.UnreadableMessageError as error:
            raise _StreamEndedError(f"unreadable message from the server: {error}") from error

    async def _send(self, call: Any) -> None:
        while not self._closing:
            self._wake.clear()
            now = self._clock()
            if batch := self.slots.take(now):
                await call.write(encode.samples(batch, now=self._clock()))
                self.status.last_sent_at = self._clock()
                self.status.messages += 1
                self.status.samples += len(batch)
                continue
            await self._wait(self.slots.next_due() - now)

    async def _wait(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(min(timeout_s, 3600.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _welcomed(self, interval_s: float | None, version: str) -> None:
        status = self.status
        status.connected, status.connected_at = True, self._clock()
        status.detail, status.server_version = "connected", version
        status.streams += 1
        status.refused_stream = None
        status.refusals.clear()
        status.taken.clear()
        self._last_failure = ""
        self._obey(interval_s)
        self.slots.forget_sent()
        self._log.info(
            "control_plane_connected",
            address=self.server.address,
            server_version=version,
            interval_s=self.slots.interval_s,
        )

    def _obey(self, interval_s: float | None) -> None:
        wished = self._interval_s if interval_s is None else interval_s
        self.slots.interval_s = max(MIN_INTERVAL_S, wished)

    def _refused(self, refusal: encode.Refusal) -> None:
        known = (
            self.status.refusals.get(refusal.instance)
            if refusal.instance
            else self.status.refused_stream
        )
        if known != refusal:
            self._log.error(
                "refused_by_control_plane",
                instance=refusal.instance or "(the whole stream)",
                code=refusal.code,
                reason=refusal.reason,
            )
        if refusal.instance:
            self.status.refusals[refusal.instance] = refusal
            return
        self.status.refused_stream = refusal
        raise _StreamEndedError(f"refused: {refusal.code}: {refusal.reason}")

    def _failed(self, detail: str, *, once: str = "") -> None:
        self.status.detail = detail
        failure = once or detail
        if failure != self._last_failure:  # each failure once, not once per attempt
            self._last_failure = failure
            self._log.warning("control_plane_lost", address=self.server.address, detail=detail)
