"""A connection without a network: frames in, frames out."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.framing_lab import MAX_MESSAGE, Echo, Lab
from tests.fakes.http2_client import HEADERS, Http2Client
from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.connection import Connection
from xds_server.istio.picker.framing.frames import Error, Kind, Status


def test_a_call_is_answered_and_ends_with_its_client():
    lab = Lab()
    lab.tell(lab.client.ask(1, b"a", b"", b"bc"))
    assert lab.client.answers[1].messages == [b"a", b"a", b"", b"", b"bc", b"bc"]
    assert lab.client.status(1) == Status.OK
    assert lab.client.answers[1].reset is None
    assert lab.calls[0].closed == 1
    assert lab.connection.streams == 0
    assert lab.client.acks == 1


def test_answers_do_not_wait_for_the_end_of_the_request():
    lab = Lab()
    lab.tell(lab.client.ask(1, b"a", ends=False))
    assert lab.client.answers[1].messages == [b"a", b"a"]
    assert not lab.client.answers[1].is_over
    lab.tell(lab.client.data(1, b"", ends=True))
    assert lab.client.status(1) == Status.OK


def test_many_calls_share_a_connection_and_the_table_of_headers():
    lab = Lab()
    for index in range(50):
        # Some headers change, so that entries of the table get other numbers.
        fields = [*HEADERS, ("x-request-id", f"{index // 3}")]
        number = 2 * index + 1
        path = "/echo" if index % 5 else "/nowhere"
        lab.tell(
            lab.client.head(number, fields, path=path)
            + lab.client.data(number, frames.message(b"%d" % index), ends=True)
        )
        if index % 5:
            assert lab.client.answers[number].messages == [b"%d" % index] * 2
        else:
            assert lab.client.status(number) == Status.UNIMPLEMENTED


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300) | st.just(40_000), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 250_000), max_size=12),
    is_drip=st.booleans(),
)
def test_it_does_not_matter_in_which_pieces_bytes_arrive(sizes, cuts, is_drip):
    lab = Lab(initial_window_size=10_000_000)
    lab.tell(frames.window_update(0, 10_000_000))
    raw = b"".join(
        lab.client.ask(2 * index + 1, b"y" * size, b"tail")
        + frames.frame(Kind.PING, 0, 0, b"12345678")
        for index, size in enumerate(sizes)
    )
    edges = {0, len(raw), *(cut for cut in cuts if cut < len(raw))}
    if is_drip:
        edges |= set(range(min(200, len(raw))))
    for start, end in itertools.pairwise(sorted(edges)):
        lab.tell(raw[start:end])
    for index, size in enumerate(sizes):
        messages = lab.client.answers[2 * index + 1].messages
        assert messages == [b"y" * size, b"y" * size, b"tail", b"tail"]
    assert len(lab.client.pongs) == len(sizes)
    assert all(each.closed == 1 for each in lab.calls)


def test_the_preface_may_come_byte_by_byte():
    client = Http2Client()
    connection = Connection(lambda *_: Echo(), max_message_bytes=10, failed=raised)
    for index in range(len(client.greeting)):
        connection.receive(client.greeting[index : index + 1], 0.0)
    client.read(b"".join(connection.output))
    assert client.acks == 1


def raised(error: BaseException) -> None:
    raise error


@settings(max_examples=40, deadline=None)
@given(
    window=st.integers(0, 70_000),
    grants=st.lists(st.tuples(st.booleans(), st.integers(1, 60_000)), max_size=12),
    sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=3),
)
def test_no_more_is_sent_than_the_client_allows_and_all_of_it_in_the_end(window, grants, sizes):
    lab = Lab(initial_window_size=window)
    number_of = {2 * index + 1: size for index, size in enumerate(sizes)}
    allowed = dict.fromkeys(number_of, window)
    whole = frames.DEFAULT_WINDOW

    def check() -> None:
        got = {number: len(lab.client.answers[number].data) for number in number_of}
        assert sum(got.values()) <= whole
        assert all(got[number] <= allowed[number] for number in number_of)

    for number, size in number_of.items():
        lab.tell(lab.client.ask(number, b"large%d" % size))
    check()
    for is_whole, by in grants:
        if is_whole:
            whole += by
            lab.tell(frames.window_update(0, by))
        else:
            allowed[1] += by
            lab.tell(frames.window_update(1, by))
        check()
    lab.tell(frames.window_update(0, 1_000_000))
    lab.tell(Http2Client.settings(initial_window_size=1_000_000))
    for number, size in number_of.items():
        assert lab.client.answers[number].messages == [b"x" * size]
        assert lab.client.status(number) == Status.OK
    assert lab.connection.streams == 0


def test_a_window_that_becomes_smaller_than_nothing_is_waited_for():
    lab = Lab(initial_window_size=60_000)
    lab.tell(lab.client.ask(1, b"large50000", ends=False))
    lab.tell(Http2Client.settings(initial_window_size=10_000))  # 40,005 too much
    lab.tell(lab.client.data(1, frames.message(b"ab")))
    before = len(lab.client.answers[1].data)
    lab.tell(frames.window_update(1, 40_000))
    assert len(lab.client.answers[1].data) == before
    lab.tell(frames.window_update(1, 100))
    assert lab.client.answers[1].messages[-2:] == [b"ab", b"ab"]


def test_a_blocked_stream_does_not_hold_up_the_others():
    lab = Lab(initial_window_size=10)
    lab.tell(lab.client.ask(1, b"large1000"))
    lab.tell(lab.client.ask(3, b"a"))
    assert len(lab.client.answers[1].data) == 10
    assert len(lab.client.answers[3].data) == 10
    lab.tell(frames.window_update(3, 100))
    assert lab.client.answers[3].messages == [b"a", b"a"]
    assert not lab.client.answers[1].is_over


def test_a_reset_ends_the_call_and_nothing_else():
    lab = Lab(initial_window_size=10)
    lab.tell(lab.client.ask(1, b"large1000", ends=False) + lab.client.head(3))
    lab.tell(frames.reset(1, Error.CANCEL))
    assert lab.calls[0].closed == 1
    lab.tell(frames.window_update(1, 1000))  # was on its way
    lab.tell(lab.client.data(1, b"late") + frames.reset(1, Error.CANCEL))
    lab.tell(lab.client.data(3, frames.message(b"a"), ends=True))
    assert lab.client.answers[3].data
    assert lab.connection.streams == 1  # its answer waits for its window


def test_nothing_is_said_on_a_stream_that_its_client_reset_while_its_end_waited():
    lab = Lab(initial_window_size=0)
    lab.tell(lab.client.ask(1, b"a", b"refuse") + frames.reset(1, Error.CANCEL))
    assert lab.listen() == b""
    lab.connection.receive(frames.window_update(0, 1000) + frames.window_update(1, 1000), 0.0)
    assert lab.listen() == b""
    assert lab.kept.bytes == 0


def test_the_end_of_the_connection_ends_every_call_once():
    lab = Lab()
    lab.tell(lab.client.head(1) + lab.client.head(3) + lab.client.ask(5, b"a"))
    lab.connection.close()
    lab.connection.close()
    assert [each.closed for each in lab.calls] == [1, 1, 1]


def test_who_shall_leave_is_served_until_it_knows_and_refused_after_that():
    lab = Lab()
    lab.tell(lab.client.head(1))
    lab.connection.go_away()
    lab.connection.go_away()
    lab.tell(lab.client.ask(3, b"before it knew"))
    assert lab.client.goaways == [(2**31 - 1, Error.NO_ERROR, "")]
    assert lab.client.status(3) == Status.OK
    assert lab.connection.waits_for == 2
    [ping] = lab.client.pings
    lab.tell(frames.frame(Kind.PING, frames.ACK, 0, ping) * 2)
    assert lab.client.goaways[1:] == [(3, Error.NO_ERROR, "")]
    lab.tell(lab.client.ask(5, b"late"))
    assert lab.client.answers[5].reset == Error.REFUSED_STREAM
    lab.tell(lab.client.data(1, frames.message(b"a"), ends=True))
    assert lab.client.answers[1].messages == [b"a", b"a"]
    assert lab.connection.waits_for == 0


def test_nobody_waits_for_a_call_that_has_no_end():
    lab = Lab()
    lab.tell(lab.client.ask(1, b"a", path="/patient"))
    assert (lab.connection.streams, lab.connection.waits_for) == (1, 0)


def test_headers_may_go_on_be_padded_and_have_a_priority():
    lab = Lab()
    block = lab.client.encoder.encode(list(HEADERS))
    flags = frames.PADDED | frames.HAS_PRIORITY
    first = bytes((4,)) + b"\x00\x00\x00\x00\x10" + block[:5] + b"\x00" * 4
    lab.tell(
        frames.frame(Kind.HEADERS, flags, 1, first)
        + frames.frame(Kind.CONTINUATION, 0, 1, block[5:9])
        + frames.frame(Kind.CONTINUATION, frames.END_HEADERS, 1, block[9:])
    )
    padded = bytes((3,)) + frames.message(b"a") + b"\x00" * 3
    lab.tell(frames.frame(Kind.DATA, frames.PADDED | frames.END_STREAM, 1, padded))
    assert lab.client.answers[1].messages == [b"a", b"a"]
    assert lab.client.status(1) == Status.OK


def test_trailers_of_the_client_end_its_side():
    lab = Lab()
    lab.tell(lab.client.ask(1, b"a", ends=False))
    flags = frames.END_HEADERS | frames.END_STREAM
    lab.tell(lab.client.head(1, [("x-checksum", "1")], flags=flags))
    assert lab.client.status(1) == Status.OK
    assert lab.client.answers[1].reset is None  # it has nothing more to say


def test_what_is_not_known_is_ignored():
    lab = Lab()
    lab.tell(
        frames.frame(0xEE, 0xFF, 7, b"?")
        + frames.frame(Kind.PRIORITY, 0, 1, b"12345")
        + frames.goaway(0, Error.NO_ERROR)
        + frames.frame(Kind.PING, frames.ACK, 0, b"12345678")
        + frames.frame(Kind.SETTINGS, frames.ACK, 0)
        + frames.frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", 0xABCD, 1))
    )
    lab.tell(lab.client.ask(1, b"a"))
    assert lab.client.status(1) == Status.OK


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (frames.message(b"refuse"), Status.INVALID_ARGUMENT, "not that: 100 %25 %C3%BC%0A"),
        (frames.message(b"break"), Status.INTERNAL, "the call failed; see the log"),
        (b"\x01" + frames.message(b"a")[1:], Status.UNIMPLEMENTED, "compressed messages are not taken"),
        (b"\x00" + struct.pack(">I", MAX_MESSAGE + 1) + b"a", Status.RESOURCE_EXHAUSTED,
         f"a message of {MAX_MESSAGE + 1} bytes: at most {MAX_MESSAGE} are taken"),
    ],
    ids=["refused", "raises", "compressed", "too large"],
)  # fmt: skip
def test_what_ends_a_call_leaves_the_connection(message, status, text):
    lab = Lab()
    lab.tell(lab.client.head(1) + lab.client.data(1, message))
    assert lab.client.status(1) == status
    assert lab.client.answers[1].headers["grpc-message"] == text
    assert lab.client.answers[1].reset == Error.NO_ERROR
    assert lab.calls[0].closed == 1
    lab.tell(lab.client.data(1, frames.message(b"late")))  # before it knew
    lab.tell(lab.client.ask(3, b"a"))
    assert lab.client.status(3) == Status.OK
    assert [str(each) for each in lab.failures] == (["broken"] if b"break" in message else [])


def test_a_call_that_breaks_when_it_ends_is_told_and_ends_nothing_else():
    lab = Lab()
    lab.tell(lab.client.head(1) + lab.client.head(3))
    lab.calls[0].breaks = lab.calls[1].breaks = True
    lab.tell(lab.client.data(1, frames.message(b"quiet"), ends=True))
    assert lab.client.answers[1].messages == []
    assert lab.client.status(1) == Status.OK
    lab.connection.close()
    assert [str(each) for each in lab.failures] == ["broken at the end"] * 2
    assert [each.closed for each in lab.calls] == [1, 1]


def test_a_body_may_be_as_long_as_its_client_said():
    lab = Lab()
    fields = [*HEADERS, ("content-length", "12")]
    lab.tell(lab.client.head(1, fields) + lab.client.data(1, frames.message(b"a")))
    lab.tell(lab.client.data(1, frames.message(b"b"), ends=True))
    assert lab.client.answers[1].messages == [b"a", b"a", b"b", b"b"]
    assert lab.client.status(1) == Status.OK


def test_a_client_that_ends_while_its_end_waits_is_answered_once():
    lab = Lab(initial_window_size=0)
    lab.tell(lab.client.ask(1, b"a", b"refuse", ends=False))
    lab.tell(lab.client.data(1, b"late", ends=True))
    lab.tell(frames.window_update(1, 1000))
    assert lab.client.status(1) == Status.INVALID_ARGUMENT
    assert lab.client.answers[1].reset is None


def test_half_a_message_is_an_error():
    lab = Lab()
    lab.tell(lab.client.head(1) + lab.client.data(1, frames.message(b"abc")[:-1], ends=True))
    assert lab.client.status(1) == Status.INTERNAL


def test_a_refusal_comes_after_what_was_answered():
    lab = Lab(initial_window_size=0)
    lab.tell(lab.client.ask(1, b"a", b"refuse", b"never", ends=False))
    assert not lab.client.answers[1].is_over
    lab.tell(frames.window_update(1, 1000))
    assert lab.client.answers[1].messages == [b"a", b"a"]
    assert lab.client.status(1) == Status.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({"content-type": "text/html"}, ("415", None)),
        ({"content-type": "application/grpc-web"}, ("415", None)),
        ({"content-type": None}, ("415", None)),
        ({":method": "GET"}, ("405", None)),
        ({"content-type": "application/grpc+proto"}, ("200", "0")),
        ({"content-type": "application/grpc;x=y"}, ("200", "0")),
        ({"x-odd": "caf\xe9"}, ("200", "0")),
    ],
    ids=str,
)
@pytest.mark.parametrize("ends", [True, False])
def test_only_grpc_is_served(changed, answer, ends):
    lab = Lab()
    fields = [(name, changed.get(name, value)) for name, value in HEADERS]
    fields += [each for each in changed.items() if each[0] == "x-odd"]
    raw = [(name, value.encode("latin-1")) for name, value in fields if value is not None]
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    lab.tell(lab.client.head(1, raw, flags=flags))
    if answer[1] is not None and not ends:
        lab.tell(lab.client.data(1, b"", ends=True))
    got = lab.client.answers[1]
    assert (got.headers[":status"], got.headers.get("grpc-status")) == answer
    assert got.is_over
    lab.tell(lab.client.ask(3, b"a"))
    assert lab.client.status(3) == Status.OK


@pytest.mark.parametrize("size", [0, 1000, 4096])
def test_a_client_with_a_small_table_of_headers_can_read_every_answer(size):
    lab = Lab(header_table_size=size)
    lab.client.decoder.max_allowed_table_size = size  # from its settings' acknowledgment on
    for number in (1, 3):
        lab.tell(lab.client.ask(number, b"a"))
        assert lab.client.status(number) == Status.OK
    lab.tell(Http2Client.settings(header_table_size=size))
    lab.tell(lab.client.ask(5, b"a", path="/nowhere"))
    assert lab.client.status(5) == Status.UNIMPLEMENTED


def test_a_patient_call_says_something_of_its_own_accord():
    lab = Lab()
    lab.tell(lab.client.ask(1, b"a", path="/patient"))
    assert not lab.client.answers[1].is_over
    lab.sends[0](b"news")
    lab.listen()
    assert lab.client.answers[1].messages == [b"a", b"a", b"news"]
    lab.tell(frames.reset(1, Error.CANCEL))
    lab.sends[0](b"too late")
    assert lab.listen() == b""
