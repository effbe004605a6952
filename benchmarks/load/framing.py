"""Just enough HTTP/2 and gRPC framing for a load client.

Requests use literal header fields without indexing and responses are never HPACK-decoded, so no
compression state exists. Receive windows are opened so far that a run never needs an update.
RFC 9113 (HTTP/2), RFC 7541 §6.2.2 (literal fields), gRPC over HTTP/2 (5-byte message prefix).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
WINDOW = 1 << 30
STREAM = 1
"""Every connection carries exactly one stream, as a proxy's ADS connection does."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """Return a literal header field without indexing; names and values stay below 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def opening(path: str, authority: str) -> bytes:
    """Return everything up to the first message: preface, settings, window, request headers."""
    settings = b"".join(
        struct.pack(">HI", *pair) for pair in ((0x1, 0), (0x4, WINDOW), (0x5, (1 << 24) - 1))
    )
    pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    return (
        PREFACE
        + frame(SETTINGS, 0, 0, settings)
        + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW))
        + frame(HEADERS, END_HEADERS, STREAM, b"".join(_field(*pair) for pair in pairs))
    )


def message(body: bytes) -> bytes:
    """Return one gRPC message in one DATA frame (up to 16 KiB, the default frame size)."""
    return frame(DATA, 0, STREAM, b"\x00" + struct.pack(">I", len(body)) + body)


class StreamEndedError(Exception):
    """The server ended the stream or the connection."""


class Receiver:
    """Turns received bytes into gRPC messages and the control frames that must be answered."""

    __slots__ = ("_body", "_frames", "replies")

    def __init__(self) -> None:
        self._frames = b""
        self._body = b""
        self.replies: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield complete messages.

        Raises:
            StreamEndedError: on RST_STREAM, GOAWAY or trailers.
        """
        buffer = self._frames + data if self._frames else data
        position, size = 0, len(buffer)
        while size - position >= 9:
            length = int.from_bytes(buffer[position : position + 3], "big")
            end = position + 9 + length
            if end > size:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            payload = buffer[position + 9 : end]
            position = end
            if kind == DATA:
                self._body += payload
                yield from self._messages()
            elif kind == SETTINGS and not flags & ACK:
                self.replies.append(frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                self.replies.append(frame(PING, ACK, 0, payload))
            elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
                raise StreamEndedError(payload.decode("latin-1"))
        self._frames = buffer[position:]

    def _messages(self) -> Iterator[bytes]:
        while len(self._body) >= 5:
            end = 5 + int.from_bytes(self._body[1:5], "big")
            if len(self._body) < end:
                return
            body, self._body = self._body[5:end], self._body[end:]
            yield body


def varint(value: int) -> bytes:
    """Return a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text_field(number: int, value: bytes) -> bytes:
    """Return a length-delimited protobuf field with a number below 16."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def scan(body: bytes) -> dict[int, bytes]:
    """Return the last value of each length-delimited top-level field; other fields are skipped."""
    fields: dict[int, bytes] = {}
    position, size = 0, len(body)
    while position < size:
        key = body[position]
        position += 1
        value, shift = 0, 0
        while True:
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if key & 7 == 2:
            fields[key >> 3] = body[position : position + value]
            position += value
    return fields
