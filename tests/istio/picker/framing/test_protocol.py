"""What a client must not do, after RFC 9113: what ends a stream, what ends the connection, and what is only late."""

from __future__ import annotations

import struct

import pytest

from tests.fakes.framing_lab import Echo, Lab, head_of, refusal_of
from tests.fakes.http2_client import HEADERS, Http2Client
from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.connection import Connection
from xds_server.istio.picker.framing.ended import REMEMBERED
from xds_server.istio.picker.framing.frames import Error, Http2Error, Kind, Status
from xds_server.istio.picker.framing.limits import STREAM_WINDOW

HEAD = head_of()
ASKED = HEAD + Http2Client.data(1, frames.message(b"a"), ends=True)
"""A stream that was answered and is over."""
CUT = HEAD + Http2Client.data(1, frames.message(b"refuse"))
"""A stream that was ended from here before its client had said everything."""
PATIENT = [*HEADERS[:2], (":path", "/patient"), *HEADERS[3:]]
OPEN, HALF = head_of(PATIENT), head_of(PATIENT, ends=True)
"""A stream that goes on from here though its client said everything."""


def setting(number: int, value: int) -> bytes:
    return frames.frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", number, value))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        # 4.2, 4.3: frames and blocks of headers
        (b"\x00\x40\x01" + b"\x00" * 20_000, Error.FRAME_SIZE_ERROR),
        (frames.frame(Kind.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), Error.COMPRESSION_ERROR),
        (frames.frame(Kind.HEADERS, frames.END_HEADERS, 1, b"\x3f\xe1\xff\x03"), Error.COMPRESSION_ERROR),
        # 5.1: streams
        (frames.frame(Kind.DATA, 0, 1, b"a"), Error.PROTOCOL_ERROR),
        (frames.reset(9, Error.CANCEL), Error.PROTOCOL_ERROR),
        (frames.window_update(9, 1), Error.PROTOCOL_ERROR),
        (HEAD + frames.frame(Kind.DATA, 0, 2, b"a"), Error.PROTOCOL_ERROR),
        (head_of(stream=5) + frames.reset(2, Error.CANCEL), Error.PROTOCOL_ERROR),
        (head_of(stream=5) + frames.window_update(2, 1), Error.PROTOCOL_ERROR),
        (ASKED + head_of(), Error.STREAM_CLOSED),
        (HEAD + frames.reset(1, Error.CANCEL) + head_of(ends=True), Error.STREAM_CLOSED),
        (CUT + head_of(), Error.STREAM_CLOSED),
        # 5.1.1: their numbers
        (head_of(stream=2), Error.PROTOCOL_ERROR),
        (head_of(stream=0), Error.PROTOCOL_ERROR),
        (head_of(stream=5) + head_of(stream=3), Error.PROTOCOL_ERROR),
        # 6.1: DATA
        (frames.frame(Kind.DATA, 0, 0, b"a"), Error.PROTOCOL_ERROR),
        (HEAD + frames.frame(Kind.DATA, frames.PADDED, 1, b""), Error.PROTOCOL_ERROR),
        (HEAD + frames.frame(Kind.DATA, frames.PADDED, 1, b"\x02a"), Error.PROTOCOL_ERROR),
        (ASKED + frames.frame(Kind.DATA, frames.PADDED, 1, b"\x09a"), Error.PROTOCOL_ERROR),
        # 6.2: HEADERS
        (frames.frame(Kind.HEADERS, frames.PADDED, 1, b"\x09a"), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.HEADERS, frames.HAS_PRIORITY, 1, b"1234"), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.HEADERS, 0, 1, b"") + frames.frame(Kind.PING, 0, 0, b"12345678"), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.HEADERS, 0, 1, b"") + head_of(stream=3), Error.PROTOCOL_ERROR),
        # 6.3: PRIORITY
        (frames.frame(Kind.PRIORITY, 0, 0, b"12345"), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.PRIORITY, 0, 1, b"1234"), Error.FRAME_SIZE_ERROR),
        # 6.4: RST_STREAM
        (frames.frame(Kind.RST_STREAM, 0, 1, b"1"), Error.FRAME_SIZE_ERROR),
        (frames.reset(0, Error.CANCEL), Error.PROTOCOL_ERROR),
        # 6.5: SETTINGS
        (frames.frame(Kind.SETTINGS, 0, 0, b"12345"), Error.FRAME_SIZE_ERROR),
        (frames.frame(Kind.SETTINGS, frames.ACK, 0, b"123456"), Error.FRAME_SIZE_ERROR),
        (frames.frame(Kind.SETTINGS, 0, 1, b""), Error.PROTOCOL_ERROR),
        (setting(0x2, 2), Error.PROTOCOL_ERROR),
        (setting(0x4, 2**31), Error.FLOW_CONTROL_ERROR),
        (setting(0x5, 16_383), Error.PROTOCOL_ERROR),
        (setting(0x5, 2**24), Error.PROTOCOL_ERROR),
        (HEAD + frames.window_update(1, 2**30) + setting(0x4, 2**30 + 65_535), Error.FLOW_CONTROL_ERROR),
        # 6.6, 6.7, 6.8: PUSH_PROMISE, PING, GOAWAY
        (frames.frame(Kind.PUSH_PROMISE, 0, 1, b""), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.PING, 0, 0, b"1"), Error.FRAME_SIZE_ERROR),
        (frames.frame(Kind.PING, 0, 1, b"12345678"), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.GOAWAY, 0, 1, bytes(8)), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.GOAWAY, 0, 0, bytes(7)), Error.PROTOCOL_ERROR),
        # 6.9: WINDOW_UPDATE
        (frames.frame(Kind.WINDOW_UPDATE, 0, 0, b"1"), Error.FRAME_SIZE_ERROR),
        (frames.window_update(0, 0), Error.PROTOCOL_ERROR),
        (frames.window_update(0, 2**31 - 1), Error.FLOW_CONTROL_ERROR),
        # 6.10: CONTINUATION
        (frames.frame(Kind.CONTINUATION, frames.END_HEADERS, 1, b""), Error.PROTOCOL_ERROR),
        (frames.frame(Kind.HEADERS, 0, 1, b"") + frames.frame(Kind.CONTINUATION, frames.END_HEADERS, 3, b""),
         Error.PROTOCOL_ERROR),
    ],
)  # fmt: skip
def test_what_ends_the_connection_is_told_with_a_reason(raw, code):
    lab = Lab()
    error = refusal_of(lab, raw)
    assert error is not None
    [(_, said, text)] = lab.client.goaways
    assert said == code
    assert text
    lab.connection.close()
    assert all(each.closed == 1 for each in lab.calls)


MORE = frames.message(b"b")
TRAILERS = head_of([("x-checksum", "1")], ends=True)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (HALF + Http2Client.data(1, MORE), Error.STREAM_CLOSED),
        (HALF + head_of(ends=True), Error.STREAM_CLOSED),
        (OPEN + TRAILERS + Http2Client.data(1, MORE), Error.STREAM_CLOSED),
        (ASKED + Http2Client.data(1, MORE), Error.STREAM_CLOSED),
        (HEAD + frames.reset(1, Error.CANCEL) + Http2Client.data(1, MORE), Error.STREAM_CLOSED),
        (HEAD + frames.window_update(1, 0), Error.PROTOCOL_ERROR),
        (HEAD + frames.window_update(1, 2**31 - 1), Error.FLOW_CONTROL_ERROR),
        (HEAD + frames.frame(Kind.PRIORITY, 0, 1, b"1234"), Error.FRAME_SIZE_ERROR),
        (HEAD + HEAD, Error.PROTOCOL_ERROR),
        (HEAD + head_of([(":path", "/")], ends=True), Error.PROTOCOL_ERROR),
        (HEAD + head_of([("X-Up", "1")], ends=True), Error.PROTOCOL_ERROR),
        (
            head_of([*HEADERS, ("content-length", "7")]) + Http2Client.data(1, MORE, ends=True),
            Error.PROTOCOL_ERROR,
        ),
        (
            head_of([*HEADERS, ("content-length", "5")]) + Http2Client.data(1, MORE),
            Error.PROTOCOL_ERROR,
        ),
        (
            head_of([*HEADERS, ("content-length", "5")]) + head_of([("x-a", "b")], ends=True),
            Error.PROTOCOL_ERROR,
        ),
        (head_of([*HEADERS, ("content-length", "5")], ends=True), Error.PROTOCOL_ERROR),
    ],
)
def test_what_ends_a_stream_leaves_the_others(raw, code):
    lab = Lab()
    lab.tell(raw)
    assert lab.client.answers[1].reset == code
    assert lab.connection.streams == 0
    assert all(each.closed == 1 for each in lab.calls)
    lab.tell(head_of(stream=3) + lab.client.data(3, frames.message(b"a"), ends=True))
    assert lab.client.answers[3].messages == [b"a", b"a"]
    assert not lab.client.goaways


@pytest.mark.parametrize(
    "late",
    [
        Http2Client.data(1, MORE),
        Http2Client.data(1, MORE, ends=True),
        head_of([("x-checksum", "1")], ends=True),
        frames.window_update(1, 100),
        frames.window_update(1, 0),
        frames.reset(1, Error.CANCEL),
        frames.frame(Kind.PRIORITY, 0, 1, b"12345"),
    ],
    ids=["data", "its end", "trailers", "window", "no window", "reset", "priority"],
)
def test_what_was_sent_before_the_client_knew_that_it_is_over_is_ignored(late):
    lab = Lab()
    lab.tell(CUT)
    assert lab.client.answers.pop(1).reset == Error.NO_ERROR
    lab.tell(late)
    assert 1 not in lab.client.answers
    assert not lab.client.goaways


def test_what_comes_of_a_stream_that_nobody_remembers_ends_nothing():
    lab = Lab()
    lab.tell(CUT)
    for index in range(2 * REMEMBERED):
        lab.tell(head_of(stream=2 * index + 3) + frames.reset(2 * index + 3, Error.CANCEL))
        lab.now += 1
    lab.tell(lab.client.data(1, MORE))
    assert lab.client.answers[1].reset == Error.STREAM_CLOSED
    assert not lab.client.goaways


GOOD = dict(HEADERS)


@pytest.mark.parametrize(
    "fields",
    [
        [*HEADERS, ("X-Upper", "1")],
        [*HEADERS, ("", "1")],
        [*HEADERS, ("a b", "1")],
        [*HEADERS, ("x-\u00e9", "1")],
        [*HEADERS, ("x-line", "1\r\nx: y")],
        [*HEADERS, ("x-nul", "1\x00")],
        [*HEADERS, ("x-space", " 1")],
        [*HEADERS, ("x-space", "1\t")],
        [*HEADERS, ("connection", "close")],
        [*HEADERS, ("transfer-encoding", "chunked")],
        [*HEADERS, ("te", "gzip")],
        [*HEADERS, (":path", "/again")],
        [("x-first", "1"), *HEADERS],
        [(":status", "200"), *HEADERS],
        [(":unknown", "1"), *HEADERS],
        [(":path", "/echo"), *HEADERS],
        [each for each in HEADERS if each[0] != ":method"],
        [each for each in HEADERS if each[0] != ":scheme"],
        [each for each in HEADERS if each[0] != ":path"],
        [(name, "" if name == ":path" else value) for name, value in HEADERS],
        [*HEADERS, ("content-length", "5x")],
        [*HEADERS, ("content-length", "-5")],
        [*HEADERS, ("content-length", "5"), ("content-length", "6")],
    ],
    ids=lambda fields: " ".join(f"{name}={value!a}" for name, value in fields if (name, value) not in HEADERS)
    or "missing",
)  # fmt: skip
def test_a_request_that_is_malformed_is_refused_and_no_other(fields):
    lab = Lab()
    for number in (1, 3):  # also where the block is known by then
        lab.tell(head_of(fields, stream=number))
        assert lab.client.answers[number].reset == Error.PROTOCOL_ERROR
    assert not lab.calls
    lab.tell(lab.client.ask(5, b"a"))
    assert lab.client.status(5) == Status.OK


@pytest.mark.parametrize(
    "first",
    [frames.frame(Kind.PING, 0, 0, b"12345678"), HEAD, frames.frame(Kind.SETTINGS, frames.ACK, 0) + HEAD],
    ids=["a ping", "a request", "an acknowledgment"],
)  # fmt: skip
def test_settings_come_first(first):
    connection = Connection(lambda *_: Echo(), max_message_bytes=10, failed=lambda _: None)
    with pytest.raises(Http2Error, match="SETTINGS first"):
        connection.receive(frames.PREFACE + first, 0.0)
    assert not connection.is_greeted


def test_who_speaks_http_1_is_told():
    connection = Connection(lambda *_: Echo(), max_message_bytes=10, failed=lambda _: None)
    with pytest.raises(Http2Error, match="HTTP/2"):
        connection.receive(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 0.0)


def test_more_than_there_is_room_for_ends_the_stream():
    lab = Lab()
    lab.tell(HEAD)
    stream = lab.connection._streams[1]
    stream.room = 10
    lab.tell(lab.client.data(1, frames.message(b"123456")))
    assert lab.client.answers[1].reset == Error.FLOW_CONTROL_ERROR
    assert stream.room < STREAM_WINDOW
    lab.connection._room = 10
    error = refusal_of(lab, head_of(stream=3) + lab.client.data(3, frames.message(b"123456")))
    assert error is not None
    assert error.code == Error.FLOW_CONTROL_ERROR
