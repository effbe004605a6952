"""What clients may do to a server that takes everything: each flood ends its own connection, and nothing grows."""

from __future__ import annotations

import os
import tracemalloc

import pytest
from hpack import Encoder

from tests.fakes.framing_lab import Lab, head_of, refusal_of
from tests.fakes.http2_client import HEADERS, parse
from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.frames import Error, Kind, Status
from xds_server.istio.picker.framing.limits import (
    MAX_CONTINUATIONS,
    MAX_HEADERS_BYTES,
    MAX_STREAMS,
    STREAM_TOP_UP,
    STREAM_WINDOW,
    TOP_UP,
)
from xds_server.istio.picker.framing.patience import BURST, PER_S

EMPTY = frames.frame(Kind.CONTINUATION, 0, 1, b"")


def resets(index: int) -> bytes:
    number = 2 * index + 1
    return head_of(stream=number) + frames.reset(number, Error.CANCEL)


def malformed(index: int) -> bytes:
    return head_of([("x", "y")], stream=2 * index + 1)


FLOODS = {
    "pings": lambda index: frames.frame(Kind.PING, 0, 0, b"12345678"),
    "settings": lambda index: frames.frame(Kind.SETTINGS, 0, 0),
    "priorities": lambda index: frames.frame(Kind.PRIORITY, 0, 2 * index + 1, b"12345"),
    "unknown frames": lambda index: frames.frame(0xEE, 0, 0, b""),
    "rapid resets": resets,
    "malformed requests": malformed,
    "empty data": lambda index: (b"" if index else head_of()) + frames.frame(Kind.DATA, 0, 1, b""),
    "data of a stream that is over": lambda index: (
        (b"" if index else head_of(ends=True)) + frames.frame(Kind.DATA, 0, 1, b"a")
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_what_leads_to_nothing_ends_the_connection(flood):
    lab = Lab()
    for index in range(BURST):
        assert refusal_of(lab, flood(index)) is None
    error = next(
        (found for index in range(BURST, BURST + 5) if (found := refusal_of(lab, flood(index)))),
        None,
    )
    assert error is not None
    assert error.code == Error.ENHANCE_YOUR_CALM
    assert lab.client.goaways[-1][1] == Error.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_the_same_at_a_rate_that_does_no_harm_goes_on_for_ever(flood):
    lab = Lab()
    for index in range(3 * BURST):
        lab.now += 1 / PER_S
        assert refusal_of(lab, flood(index)) is None


def test_a_ping_with_every_message_is_how_grpc_measures_the_line():
    lab = Lab()
    lab.tell(lab.client.head(1))
    for _ in range(3 * BURST):
        ping = frames.frame(Kind.PING, 0, 0, b"12345678")
        assert refusal_of(lab, lab.client.data(1, frames.message(b"a")) + ping) is None


def test_clients_that_abort_requests_are_no_flood():
    lab = Lab()
    for index in range(3 * BURST):
        number = 2 * index + 1
        asked = lab.client.ask(number, b"a", ends=False)
        assert refusal_of(lab, asked + frames.reset(number, Error.CANCEL)) is None


@pytest.mark.parametrize(
    "block",
    [
        frames.frame(Kind.HEADERS, 0, 1, b"") + EMPTY * (MAX_CONTINUATIONS + 1),
        frames.frame(Kind.HEADERS, 0, 1, b"a" * 10_000)
        + frames.frame(Kind.CONTINUATION, 0, 1, b"a" * 10_000),
    ],
    ids=["empty ones", "large ones"],
)
def test_headers_that_go_on_and_on_end_the_connection(block):
    error = refusal_of(Lab(), block)
    assert error is not None
    assert error.code == Error.ENHANCE_YOUR_CALM


def test_a_request_may_have_as_many_headers_as_it_is_told():
    lab = Lab()
    many = [(f"x-{index}", "v" * 100) for index in range(100)]
    lab.tell(lab.client.head(1, [*HEADERS, *many]) + lab.client.data(1, b"", ends=True))
    assert lab.client.status(1) == Status.OK


def test_a_bomb_of_headers_is_not_unpacked():
    # One entry of 4 KB, named again and again in a byte: 4 MB out of 5 KB.
    encoder = Encoder()
    bomb = encoder.encode([("x-bomb", "b" * 4000)], huffman=False) + b"\xbe" * 1000
    tracemalloc.start()
    try:
        error = refusal_of(Lab(), frames.frame(Kind.HEADERS, frames.END_HEADERS, 1, bomb))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error is not None
    assert peak < 20 * MAX_HEADERS_BYTES


def test_no_more_streams_are_open_than_was_said(monkeypatch):
    monkeypatch.setattr("xds_server.istio.picker.framing.connection.MAX_STREAMS", 3)
    lab = Lab()
    lab.tell(b"".join(head_of(stream=number) for number in (1, 3, 5, 7)))
    assert lab.client.answers[7].reset == Error.REFUSED_STREAM
    assert lab.connection.streams == 3
    lab.tell(lab.client.data(1, b"", ends=True) + lab.client.ask(9, b"a"))
    assert lab.client.status(9) == Status.OK
    assert MAX_STREAMS < 2**31


def updates(raw: bytes) -> dict[int, int]:
    """Return what the client may send more, by stream."""
    found: dict[int, int] = {}
    for each in parse(raw):
        if each.kind == Kind.WINDOW_UPDATE:
            by = int.from_bytes(each.payload, "big")
            found[each.stream] = found.get(each.stream, 0) + by
    return found


def upload(lab: Lab, size: int) -> int:
    """Send so much on stream 1, as far as there is room; return how much of it was sent."""
    room = STREAM_WINDOW
    raw = frames.message(bytes(100_000))
    sent = 0
    while sent < size and room >= len(raw):
        lab.connection.receive(lab.client.data(1, raw), 0.0)
        sent, room = sent + len(raw), room - len(raw) + updates(lab.listen()).get(1, 0)
    return sent


def test_who_takes_the_answers_may_send_without_an_end():
    lab = Lab(initial_window_size=2**31 - 1)
    lab.tell(frames.window_update(0, 2**30) + head_of())
    assert upload(lab, 2 * TOP_UP + 10) > 2 * TOP_UP
    assert lab.kept.bytes == 0


def test_who_takes_no_answers_may_not_send_more_and_holds_up_nobody():
    lab = Lab()
    lab.tell(head_of())
    sent = upload(lab, 10 * STREAM_WINDOW)
    assert sent <= STREAM_WINDOW + STREAM_TOP_UP
    assert lab.kept.bytes < 2 * sent + 10
    lab.tell(lab.client.data(1, b""))
    # The connection's room is not the stream's: another one goes on.
    lab.tell(frames.window_update(0, 2**30) + lab.client.ask(3, b"a"))
    assert lab.client.status(3) == Status.OK
    # What it takes in the end gives it room again.
    lab.connection.receive(frames.window_update(1, 2**30), 0.0)
    assert updates(lab.listen())[1] > 0
    assert lab.kept.bytes == 0


@pytest.mark.parametrize("part", [frames.message(bytes(150_000))[:-1], frames.message(b"large150000")],
                         ids=["half messages", "answers nobody takes"])  # fmt: skip
def test_all_that_waits_is_bounded_for_all_together(part):
    lab = Lab(most_kept=1_000_000, initial_window_size=0)
    for number in range(1, 41, 2):
        lab.tell(head_of(stream=number) + lab.client.data(number, part))
        assert lab.kept.bytes <= 1_000_000
    over = [each for each in lab.client.answers.values() if each.is_over]
    assert over
    assert all(each.headers["grpc-status"] == str(int(Status.RESOURCE_EXHAUSTED)) for each in over)
    assert lab.connection.streams + len(over) == 20
    lab.tell(lab.client.ask(41, b""))  # there is room for small ones
    assert lab.connection.streams + len(over) == 21
    lab.connection.close()
    assert lab.kept.bytes == 0


def test_what_comes_after_the_end_is_not_kept():
    lab = Lab(initial_window_size=0)
    lab.tell(lab.client.ask(1, b"a", b"refuse", ends=False))
    before = lab.kept.bytes
    lab.tell(lab.client.data(1, os.urandom(1_000_000)))
    assert lab.kept.bytes == before


def test_a_connection_of_ten_thousand_answered_requests_keeps_little():
    lab = Lab()

    def ask(numbers: range) -> None:
        for number in numbers:
            lab.connection.receive(lab.client.ask(number, b"a"), 0.0)
            for each in (lab.connection.output, lab.calls, lab.sends):
                each.clear()

    lab.tell(frames.window_update(0, 2**30))
    ask(range(1, 2_001, 2))
    tracemalloc.start()
    try:
        ask(range(2_001, 20_001, 2))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 500_000
    assert lab.connection.streams == 0
