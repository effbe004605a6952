"""A connection of the picker without a network, and its client: bytes are handed over, time is set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.fakes.http2_client import HEADERS, Http2Client
from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.calls import Call, CallError, Send
from xds_server.istio.picker.framing.connection import Connection
from xds_server.istio.picker.framing.frames import Http2Error, Kind, Status
from xds_server.istio.picker.framing.kept import Kept

MAX_MESSAGE = 200_000


class Echo:
    """Says everything twice, and `large N` with N bytes."""

    ends_with_client = True

    def __init__(self) -> None:
        self.closed = 0
        self.breaks = False

    def take(self, raw: bytes) -> Iterable[bytes]:
        if raw == b"quiet":
            return []
        if raw == b"break":
            raise RuntimeError("broken")
        if raw.startswith(b"refuse"):
            raise CallError(Status.INVALID_ARGUMENT, "not that: 100 % ü\n")
        if raw.startswith(b"large"):
            return [b"x" * int(raw[5:])]
        return [raw, raw]

    def close(self) -> None:
        self.closed += 1
        if self.breaks:
            raise RuntimeError("broken at the end")


class Patient(Echo):
    """Goes on when the client has said everything."""

    ends_with_client = False


class Lab:
    """A connection and its client."""

    def __init__(self, *, most_kept: int = 1 << 28, **client_settings: int) -> None:
        self.client = Http2Client(**client_settings)
        self.now = 0.0
        self.kept = Kept(most_kept)
        self.calls: list[Echo] = []
        self.sends: list[Send] = []
        self.failures: list[BaseException] = []
        self.connection = Connection(
            self._serve,
            max_message_bytes=MAX_MESSAGE,
            failed=self.failures.append,
            kept=self.kept,
        )
        self.tell(self.client.greeting)

    def _serve(self, path: str, send: Send) -> Call | None:
        if path not in ("/echo", "/patient"):
            return None
        self.calls.append(Echo() if path == "/echo" else Patient())
        self.sends.append(send)
        return self.calls[-1]

    def tell(self, raw: bytes) -> None:
        try:
            self.connection.receive(raw, self.now)
        finally:
            self.listen()

    def listen(self) -> bytes:
        raw = b"".join(self.connection.output)
        self.connection.output.clear()
        self.client.read(raw)
        return raw


def head_of(
    fields: Sequence[tuple[str, str]] = HEADERS, *, stream: int = 1, ends: bool = False
) -> bytes:
    """Write a request's headers as a client without a table does."""
    block = b"".join(frames.literal(name, value) for name, value in fields)
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(Kind.HEADERS, flags, stream, block)


def refusal_of(lab: Lab, raw: bytes) -> Http2Error | None:
    """Tell a connection something; return why it is over, if it is."""
    try:
        lab.tell(raw)
    except Http2Error as error:
        return error
    return None
