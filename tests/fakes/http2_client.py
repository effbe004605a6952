"""The client's side of HTTP/2, written down frame by frame: what a test sends may be wrong on purpose."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hpack import Decoder, Encoder

from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.frames import PREFACE, Kind, Setting

HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo"),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


def parse(raw: bytes) -> list[Frame]:
    """Split bytes into frames; there must be nothing left."""
    found, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 3], "big")
        assert size <= frames.MAX_FRAME_BYTES
        end = at + 9 + size
        number = int.from_bytes(raw[at + 5 : at + 9], "big")
        found.append(Frame(raw[at + 3], raw[at + 4], number, raw[at + 9 : end]))
        at = end
    assert at == len(raw)
    return found


@dataclass
class Answer:
    """What came on a stream."""

    data: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    is_over: bool = False
    reset: int | None = None

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.data):
            assert self.data[at] == 0
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            found.append(bytes(self.data[at + 5 : at + 5 + size]))
            at += 5 + size
        assert at == len(self.data)
        return found


class Http2Client:
    """Writes frames, and reads what a server says."""

    def __init__(self, **settings: int) -> None:
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.answers: dict[int, Answer] = {}
        self.pongs: list[bytes] = []
        self.pings: list[bytes] = []
        self.goaways: list[tuple[int, int, str]] = []
        self.acks = 0
        self.greeting = PREFACE + self.settings(**settings)

    @staticmethod
    def settings(**values: int) -> bytes:
        return frames.settings({Setting[name.upper()]: value for name, value in values.items()})

    def head(
        self,
        stream: int,
        fields=HEADERS,
        *,
        flags: int = frames.END_HEADERS,
        path: str | None = None,
    ) -> bytes:
        if path is not None:
            fields = [(name, path if name == ":path" else value) for name, value in fields]
        return frames.frame(Kind.HEADERS, flags, stream, self.encoder.encode(list(fields)))

    @staticmethod
    def data(stream: int, payload: bytes, *, ends: bool = False) -> bytes:
        pieces = [
            payload[at : at + frames.MAX_FRAME_BYTES]
            for at in range(0, max(1, len(payload)), frames.MAX_FRAME_BYTES)
        ]
        flags = [0] * (len(pieces) - 1) + [frames.END_STREAM if ends else 0]
        return b"".join(
            frames.frame(Kind.DATA, flag, stream, piece)
            for piece, flag in zip(pieces, flags, strict=True)
        )

    def ask(
        self, stream: int, *messages: bytes, ends: bool = True, path: str | None = None
    ) -> bytes:
        """Return a whole request."""
        body = b"".join(frames.message(each) for each in messages)
        return self.head(stream, path=path) + self.data(stream, body, ends=ends)

    def read(self, raw: bytes) -> None:
        for each in parse(raw):
            answer = self.answers.setdefault(each.stream, Answer())
            if each.kind == Kind.DATA:
                assert not answer.is_over
                answer.data += each.payload
            elif each.kind == Kind.HEADERS:
                assert each.flags & frames.END_HEADERS
                assert not answer.is_over
                answer.headers |= {
                    str(name): str(value) for name, value in self.decoder.decode(each.payload)
                }
                answer.is_over = bool(each.flags & frames.END_STREAM)
            elif each.kind == Kind.RST_STREAM:
                answer.reset = int.from_bytes(each.payload, "big")
            elif each.kind == Kind.GOAWAY:
                last, code = struct.unpack(">II", each.payload[:8])
                self.goaways.append((last, code, each.payload[8:].decode()))
            elif each.kind == Kind.PING:
                (self.pongs if each.flags & frames.ACK else self.pings).append(each.payload)
            elif each.kind == Kind.SETTINGS and each.flags & frames.ACK:
                self.acks += 1

    def status(self, stream: int) -> int:
        answer = self.answers[stream]
        assert answer.is_over
        assert answer.headers[":status"] == "200"
        assert answer.headers["content-type"] == "application/grpc"
        return int(answer.headers["grpc-status"])
