"""Clients as hypothesis thinks them up: no exception but the one, nothing left behind, nobody stuck."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes.framing_lab import Lab, head_of
from tests.fakes.http2_client import HEADERS, Http2Client
from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.frames import Error, Http2Error, Kind, Setting, Status


@settings(max_examples=80, deadline=None)
@given(raw=st.binary(max_size=400), after=st.booleans())
def test_nothing_that_arrives_raises_anything_else(raw, after):
    lab = Lab()
    with contextlib.suppress(Http2Error):
        lab.connection.receive((head_of() if after else b"") + raw, 0.0)
    lab.connection.close()
    assert not lab.failures
    assert all(each.closed == 1 for each in lab.calls)
    assert lab.kept.bytes == 0


BLOCKS = st.binary(max_size=40) | st.builds(
    lambda fields: b"".join(frames.literal(name, value) for name, value in fields),
    st.lists(st.tuples(st.sampled_from([*dict(HEADERS), "x", "X", ""]), st.text(max_size=9)), max_size=8),
)  # fmt: skip
FRAMES = st.builds(
    frames.frame, st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=40)
) | st.builds(frames.frame, st.just(1) | st.just(9), st.integers(0, 255), st.integers(1, 5), BLOCKS)


@settings(max_examples=200, deadline=None)
@given(
    sent=st.lists(FRAMES | st.sampled_from([head_of(), head_of(stream=3, ends=True)]), max_size=12)
)
def test_no_order_of_frames_raises_anything_else(sent):
    lab = Lab()
    with contextlib.suppress(Http2Error):
        lab.connection.receive(b"".join(sent), 0.0)
    lab.connection.close()
    assert not lab.failures
    assert all(each.closed == 1 for each in lab.calls)
    assert lab.kept.bytes == 0


class Gateways(RuleBasedStateMachine):
    """A client that keeps to the protocol, in any order: every call is answered in the end, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.lab: Any = None
        self.number = 1
        self.open: dict[int, list[bytes]] = {}
        """What each stream was asked."""
        self.half: dict[int, bytes] = {}
        """The rest of a message that was begun."""
        self.ended: set[int] = set()
        self.cancelled: set[int] = set()

    @initialize(window=st.sampled_from([0, 1, 100, 65_535, 2**20]))
    def connects(self, window: int) -> None:
        self.lab = Lab(initial_window_size=window)
        self.given = window

    def tell(self, raw: bytes) -> None:
        self.lab.now += 1.0
        self.lab.tell(raw)

    @rule(priority=st.booleans(), extra=st.sampled_from([None, "a", "b" * 50]))
    def begins(self, priority: bool, extra: str | None) -> None:
        number, self.number = self.number, self.number + 2
        fields = list(HEADERS) if extra is None else [*HEADERS, ("x-extra", extra)]
        if priority:
            self.tell(frames.frame(Kind.PRIORITY, 0, number, bytes(5)))
        self.tell(self.lab.client.head(number, fields))
        self.open[number] = []

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.open)))

    def is_talking(self) -> bool:
        return bool(self.open)

    @precondition(is_talking)
    @rule(data=st.data(), size=st.sampled_from([0, 1, 300, 20_000, 60_000]), pad=st.integers(0, 9))
    def asks(self, data: st.DataObject, size: int, pad: int) -> None:
        number = self.some(data)
        if number in self.half or number in self.ended:
            return
        body = bytes([number % 256]) * size
        self.open[number].append(body)
        raw = frames.message(body)
        if pad and len(raw) < 10_000:
            padded = bytes((pad,)) + raw + bytes(pad)
            self.tell(frames.frame(Kind.DATA, frames.PADDED, number, padded))
        else:
            self.tell(self.lab.client.data(number, raw))

    @precondition(is_talking)
    @rule(data=st.data(), cut=st.integers(1, 400))
    def asks_half(self, data: st.DataObject, cut: int) -> None:
        number = self.some(data)
        if number in self.half:
            self.tell(self.lab.client.data(number, self.half.pop(number)))
        elif number not in self.ended:
            raw = frames.message(b"h" * 400)
            self.open[number].append(b"h" * 400)
            self.tell(self.lab.client.data(number, raw[:cut]))
            self.half[number] = raw[cut:]

    @precondition(is_talking)
    @rule(data=st.data(), with_trailers=st.booleans())
    def ends(self, data: st.DataObject, with_trailers: bool) -> None:
        number = self.some(data)
        if number in self.half or number in self.ended:
            return
        self.ended.add(number)
        flags = frames.END_HEADERS | frames.END_STREAM
        self.tell(
            self.lab.client.head(number, [("x-t", "1")], flags=flags)
            if with_trailers
            else self.lab.client.data(number, b"", ends=True)
        )

    @precondition(is_talking)
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        number = self.some(data)
        self.tell(frames.reset(number, Error.CANCEL))
        del self.open[number]
        self.half.pop(number, None)
        self.cancelled.add(number)

    @rule(by=st.integers(1, 100_000), data=st.data())
    def takes(self, by: int, data: st.DataObject) -> None:
        self.tell(frames.window_update(data.draw(st.sampled_from([0, *self.open])), by))

    @rule(window=st.sampled_from([0, 10, 70_000]), table=st.sampled_from([0, 100, 4096]))
    def settles(self, window: int, table: int) -> None:
        self.lab.client.decoder.max_allowed_table_size = table
        self.tell(
            frames.settings({Setting.INITIAL_WINDOW_SIZE: window, Setting.HEADER_TABLE_SIZE: table})
        )

    @rule(known=st.booleans())
    def says_something_else(self, known: bool) -> None:
        kind = frames.frame(Kind.PING, 0, 0, b"12345678") if known else frames.frame(0xBE, 7, 9)
        self.tell(kind)

    @invariant()
    def nothing_failed(self) -> None:
        if self.lab is not None:
            assert not self.lab.failures
            assert not self.lab.client.goaways
            assert self.lab.connection.streams <= len(self.open)

    def teardown(self) -> None:
        if self.lab is None:
            return
        for number in self.open:
            if number in self.half:
                self.tell(self.lab.client.data(number, self.half[number]))
            if number not in self.ended:
                self.tell(self.lab.client.data(number, b"", ends=True))
        self.tell(Http2Client.settings(initial_window_size=2**30))
        self.tell(frames.window_update(0, 2**30))
        for number, asked in self.open.items():
            assert self.lab.client.status(number) == Status.OK
            expected = [each for body in asked for each in (body, body)]
            assert self.lab.client.answers[number].messages == expected
        assert self.lab.connection.streams == 0
        assert all(each.closed == 1 for each in self.lab.calls)
        assert self.lab.kept.bytes == 0


class Attackers(RuleBasedStateMachine):
    """A client that keeps to nothing: the connection ends with a reason, or goes on and answers."""

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab(most_kept=500_000)
        self.is_over = False
        self.last = 1

    def tell(self, raw: bytes) -> None:
        if self.is_over:
            return
        try:
            self.lab.connection.receive(raw, self.lab.now)
        except Http2Error:
            self.is_over = True
        self.lab.connection.output.clear()

    @rule(
        step=st.sampled_from([0, 2, 4, 1]),
        ends=st.booleans(),
        path=st.sampled_from(["/echo", "/patient", "/", ""]),
    )
    def head(self, step: int, ends: bool, path: str) -> None:
        self.last += step
        fields = [(name, path if name == ":path" else value) for name, value in HEADERS]
        self.tell(head_of(fields, stream=self.last, ends=ends))

    @rule(
        back=st.sampled_from([0, 2, 4, 1]),
        raw=st.sampled_from(
            [frames.message(b"large100000"), frames.message(b"break"), b"\x00\x00\x03\x00\x00" + bytes(10_000), b"\x01" * 9]
        ) | st.binary(max_size=30),
        flags=st.integers(0, 15),
    )  # fmt: skip
    def data(self, back: int, raw: bytes, flags: int) -> None:
        self.tell(frames.frame(Kind.DATA, flags, max(0, self.last - back), raw))

    @rule(
        kind=st.integers(2, 9),
        flags=st.integers(0, 255),
        back=st.sampled_from([0, 2, 100]),
        payload=st.binary(max_size=9),
    )
    def frame(self, kind: int, flags: int, back: int, payload: bytes) -> None:
        self.tell(frames.frame(kind, flags, max(0, self.last - back), payload))

    @rule(back=st.sampled_from([0, 2]), value=st.sampled_from([0, 1, 2**16, 2**31 - 1]))
    def window(self, back: int, value: int) -> None:
        self.tell(frames.window_update(max(0, self.last - back), value))

    @rule(key=st.integers(0, 9), value=st.sampled_from([0, 1, 16_384, 2**31 - 1, 2**32 - 1]))
    def setting(self, key: int, value: int) -> None:
        self.tell(frames.frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", key, value)))

    @invariant()
    def nothing_else_happens(self) -> None:
        assert all(str(each) == "broken" for each in self.lab.failures)
        assert 0 <= self.lab.kept.bytes <= 500_000

    def teardown(self) -> None:
        self.lab.connection.close()
        assert self.lab.kept.bytes == 0
        assert self.lab.connection.streams == 0
        assert all(each.closed == 1 for each in self.lab.calls)


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAttackers = Attackers.TestCase
TestAttackers.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
