"""Frames of HTTP/2 (RFC 9113) and the prefix of gRPC messages: numbers and bytes, nothing that remembers."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
MAX_FRAME_BYTES = 16_384
"""The default of both sides, and what we take."""
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20


class Error(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Setting(IntEnum):
    """Settings that matter here."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class Status(IntEnum):
    """Status codes of gRPC."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Http2Error(Exception):
    """What the other side sent ends the connection."""

    def __init__(self, code: Error, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def check_setting(key: int, value: int) -> None:
    """Judge a setting of the client.

    Raises:
        Http2Error: It must not have this value (RFC 9113, 6.5.2).
    """
    if key == Setting.ENABLE_PUSH and value > 1:
        raise Http2Error(Error.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
    if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
        raise Http2Error(Error.FLOW_CONTROL_ERROR, "a window that is too large")
    if key == Setting.MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
        raise Http2Error(Error.PROTOCOL_ERROR, "MAX_FRAME_SIZE is 16,384 to 16,777,215")


def settings(values: dict[Setting, int]) -> bytes:
    """Return the frame of our settings."""
    return frame(
        Kind.SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, each) for key, each in values.items())
    )


def window_update(stream: int, by: int) -> bytes:
    """Return the frame that lets the other side send more."""
    return frame(Kind.WINDOW_UPDATE, 0, stream, struct.pack(">I", by))


def reset(stream: int, code: Error) -> bytes:
    """Return the frame that ends a stream."""
    return frame(Kind.RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last: int, code: Error, text: str = "") -> bytes:
    """Return the frame after which no more streams begin; `last` is the last one that is served."""
    return frame(Kind.GOAWAY, 0, 0, struct.pack(">II", last, code) + text.encode()[:200])


def data(stream: int, payload: bytes | bytearray | memoryview) -> bytes:
    """Return the frames of some of a stream's data, each as large as may be."""
    size = len(payload)
    if size <= MAX_FRAME_BYTES:
        return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, 0, 0, stream) + payload
    return b"".join(
        data(stream, payload[start : start + MAX_FRAME_BYTES])
        for start in range(0, size, MAX_FRAME_BYTES)
    )


def message(body: bytes) -> bytes:
    """Return a gRPC message: not compressed, its size, itself."""
    return b"\x00" + struct.pack(">I", len(body)) + body


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of DATA or HEADERS without padding and priority.

    Raises:
        Http2Error: There is less than it says.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Http2Error(Error.PROTOCOL_ERROR, "padding without its length")
        start, end = 1, end - payload[0]
    if flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise Http2Error(Error.PROTOCOL_ERROR, "more padding than payload")
    return payload[start:end]


# Our own header blocks: literals without indexing (RFC 7541, 6.2.2) and one entry of the static table, so that
# they are the same bytes for everybody.


def literal(name: str, value: str) -> bytes:
    """Return one header field."""
    return b"\x00" + _text(name.encode()) + _text(value.encode())


def _text(raw: bytes) -> bytes:
    size = len(raw)
    if size < 127:
        return bytes((size,)) + raw
    # RFC 7541, 5.1: seven bits are full, the rest follows seven by seven.
    rest = size - 127
    prefix = bytearray((127,))
    while rest >= 128:
        prefix.append(rest & 0x7F | 0x80)
        rest >>= 7
    prefix.append(rest)
    return bytes(prefix) + raw


_STATUS_200 = b"\x88"
METHOD_NOT_ALLOWED = b"\x08" + _text(b"405") + literal("allow", "POST")
UNSUPPORTED_MEDIA_TYPE = b"\x08" + _text(b"415")
"""Of entry 8 of the static table the name, `:status`."""
RESPONSE_HEADERS = _STATUS_200 + literal("content-type", "application/grpc")


def trailers(status: Status, text: str = "") -> bytes:
    """Return the header block that ends a call."""
    block = literal("grpc-status", str(int(status)))
    if text:
        # gRPC over HTTP/2: everything but printable ASCII, and `%`, as %XX.
        shown = "".join(
            chr(each) if 0x20 <= each <= 0x7E and each != 0x25 else f"%{each:02X}"
            for each in text.encode()[:1000]
        )
        block += literal("grpc-message", shown)
    return block


TRAILERS_OK = trailers(Status.OK)
