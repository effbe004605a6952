"""One connection of a gRPC client: bytes in, calls served, bytes out. No I/O, and time is an argument.

HTTP/2 as RFC 9113 has it, as much as gRPC needs: requests are POSTs, messages are not compressed, priorities are
ignored, nothing is pushed. A client gets room for more of a stream as soon as it takes the answers; what many slow
ones leave here is bounded for all together, and so is what leads to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.calls import CallError, Serve
from xds_server.istio.picker.framing.ended import End, Ended
from xds_server.istio.picker.framing.frame_reader import FrameReader
from xds_server.istio.picker.framing.frames import Error, Http2Error, Kind, Setting, Status
from xds_server.istio.picker.framing.header_blocks import HeaderBlocks
from xds_server.istio.picker.framing.heads import Head, refusal_of
from xds_server.istio.picker.framing.kept import Kept
from xds_server.istio.picker.framing.limits import (
    GREETING,
    MAX_CONTINUATIONS,
    MAX_HEADERS_BYTES,
    MAX_STREAMS,
    PENDING_BYTES,
    STREAM_TOP_UP,
    STREAM_WINDOW,
    TOP_UP,
    WINDOW,
)
from xds_server.istio.picker.framing.patience import Patience
from xds_server.istio.picker.framing.sending import Sending
from xds_server.istio.picker.framing.stream import Stream

LEAVING = b"leaving!"
"""The ping whose answer says that the client knows."""
_DATA = int(Kind.DATA)


class Connection:
    """A connection. Feed it with `receive`, send what `output` has."""

    def __init__(
        self,
        serve: Serve,
        *,
        max_message_bytes: int,
        failed: Callable[[BaseException], None],
        kept: Kept | None = None,
    ) -> None:
        """Serve calls.

        Args:
            serve: Makes calls.
            max_message_bytes: A larger message ends its call.
            failed: Told whatever a call raises that is no `CallError`; the call ends, the connection stays.
            kept: Counts what waits here, together with other connections.
        """
        self._serve = serve
        self._max_message = max_message_bytes
        self._failed = failed
        self._kept = Kept() if kept is None else kept
        self._sending = Sending(kept=self._kept, eased=self._make_room, over=self._over)
        self._sending.output.append(GREETING)
        self._patience = Patience()
        self._now = 0.0
        self._reader = FrameReader()
        self._has_settings = False
        self._streams: dict[int, Stream] = {}
        self._ended = Ended()
        self._room = WINDOW
        """Bytes that the client may send."""
        self._received = 0
        self._has_asked = True
        """A message came since the last ping."""
        self._began = 0
        """The highest stream that began."""
        self._last = 0
        """The highest one that is served."""
        self._headers: tuple[int, int, bytearray] | None = None
        """Stream, flags and block of headers that go on in the next frame."""
        self._continuations = 0
        self._blocks = HeaderBlocks(MAX_HEADERS_BYTES)
        self._is_leaving = False
        self._is_closing = False

    @property
    def output(self) -> list[bytes]:
        """To be sent."""
        return self._sending.output

    @property
    def is_greeted(self) -> bool:
        """Whether the client has said what it must say first."""
        return self._has_settings

    @property
    def streams(self) -> int:
        """Calls that are open."""
        return len(self._streams)

    @property
    def waits_for(self) -> int:
        """Calls that end by themselves, and one more while the client does not know yet that it shall leave."""
        ending = sum(
            each.call is None or each.call.ends_with_client for each in self._streams.values()
        )
        return ending + (self._is_leaving and not self._is_closing)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes in.

        Args:
            data: As they came.
            now: Seconds of a clock that does not go back.

        Raises:
            Http2Error: The connection is over; send `output`, which says why, and close.
        """
        self._now = now
        try:
            for kind, flags, number, payload in self._reader.read(data):
                self._frame(kind, flags, number, payload)
        except Http2Error as error:
            self.output.append(frames.goaway(self._last, error.code, str(error)))
            raise

    def go_away(self) -> None:
        """Ask the client to begin no more calls. What it began before it knew is served; open calls go on."""
        if not self._is_leaving:
            self._is_leaving = True
            self.output.append(frames.goaway(frames.MAX_WINDOW, Error.NO_ERROR))
            self.output.append(frames.frame(Kind.PING, 0, 0, LEAVING))

    def close(self) -> None:
        """The connection is gone: end all calls."""
        for stream in list(self._streams.values()):
            self._drop(stream)

    # What comes.

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._has_settings and kind != Kind.SETTINGS:
            raise Http2Error(Error.PROTOCOL_ERROR, "expected SETTINGS first")
        if self._headers is not None and kind != Kind.CONTINUATION:
            raise Http2Error(Error.PROTOCOL_ERROR, "headers that do not go on")
        if kind == _DATA:
            self._data(flags, number, payload)
        elif kind == Kind.HEADERS:
            self._continuations = 0
            self._take_headers(flags, number, bytearray(frames.unpadded(payload, flags)))
        elif kind == Kind.CONTINUATION:
            self._continuation(flags, number, payload)
        elif kind == Kind.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == Kind.RST_STREAM:
            self._reset(number, payload)
        elif kind == Kind.SETTINGS:
            self._settings(flags, number, payload)
        elif kind == Kind.PING:
            self._ping(flags, number, payload)
        elif kind == Kind.PUSH_PROMISE:
            raise Http2Error(Error.PROTOCOL_ERROR, "a promise of a client")
        elif kind == Kind.PRIORITY:
            self._priority(number, payload)
        elif kind == Kind.GOAWAY:
            # The client begins no more streams and closes when it has read what it waits for.
            if number or len(payload) < 8:
                raise Http2Error(Error.PROTOCOL_ERROR, "a broken GOAWAY")
        else:
            self._patience.spend(self._now, "frames of an unknown kind")

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._received += size
        self._room -= size
        if self._room < 0:
            raise Http2Error(Error.FLOW_CONTROL_ERROR, "more data than there is room for")
        if self._received >= TOP_UP:
            self.output.append(frames.window_update(0, self._received))
            self._room += self._received
            self._received = 0
        if flags & frames.PADDED:
            payload = frames.unpadded(payload, flags & frames.PADDED)
        stream = self._streams.get(number)
        if stream is None:
            self._data_of_none(flags, number)
            return
        if stream.ended:
            self._break(stream, Error.STREAM_CLOSED)
            return
        stream.received += size
        stream.room -= size
        if stream.room < 0:
            self._break(stream, Error.FLOW_CONTROL_ERROR)
            return
        stream.ended = bool(flags & frames.END_STREAM)
        if not payload and not stream.ended:
            self._patience.spend(self._now, "empty frames")
        if stream.length is not None:
            stream.length -= len(payload)
            if stream.length < 0 or (stream.ended and stream.length):
                self._break(stream, Error.PROTOCOL_ERROR)
                return
        self._take(stream, payload)
        if stream.unread or stream.pending or stream.kept:
            self._count(stream)
        if number not in self._streams:
            return
        if stream.ended:
            self._client_ended(stream)
        elif stream.received >= STREAM_TOP_UP:
            self._make_room(stream)

    def _data_of_none(self, flags: int, number: int) -> None:
        if number % 2 == 0 or number > self._began:
            raise Http2Error(Error.PROTOCOL_ERROR, "data of a stream that is not open")
        if self._ended.how(number) is End.HERE:
            if flags & frames.END_STREAM:
                self._ended.add(number, by_client=True)
            return  # The client does not know yet.
        self._patience.spend(self._now, "frames of streams that are over")
        self._sending.reset(number, Error.STREAM_CLOSED)

    def _make_room(self, stream: Stream) -> None:
        """Let a client send more, if it takes what it is answered."""
        if (
            stream.received >= STREAM_TOP_UP
            and len(stream.pending) < PENDING_BYTES
            and stream.number in self._streams
        ):
            self.output.append(frames.window_update(stream.number, stream.received))
            stream.room += stream.received
            stream.received = 0

    def _take(self, stream: Stream, payload: bytes) -> None:
        if stream.trailers is not None:
            return  # It is over from here, and the client does not know yet.
        unread = stream.unread
        if (
            not unread
            and len(payload) >= 5
            and len(payload) == 5 + int.from_bytes(payload[1:5], "big")
        ):
            self._message(stream, payload[0], payload[5:])
            return
        unread += payload
        while len(unread) >= 5 and stream.trailers is None:
            size = int.from_bytes(unread[1:5], "big")
            if size > self._max_message:
                text = f"a message of {size} bytes: at most {self._max_message} are taken"
                self._end(stream, Status.RESOURCE_EXHAUSTED, text)
                return
            if len(unread) < 5 + size:
                break
            body = bytes(memoryview(unread)[5 : 5 + size])
            compressed = unread[0]
            del unread[: 5 + size]
            self._message(stream, compressed, body)

    def _message(self, stream: Stream, compressed: int, body: bytes) -> None:
        self._has_asked = stream.has_asked = True
        assert stream.call is not None  # it is over only together with its stream
        if compressed:
            self._end(stream, Status.UNIMPLEMENTED, "compressed messages are not taken")
            return
        try:
            self._send(stream, stream.call.take(body))
        except CallError as error:
            self._end(stream, error.status, str(error))
        except Exception as error:  # noqa: BLE001 - one call must not end the others
            self._failed(error)
            self._end(stream, Status.INTERNAL, "the call failed; see the log")

    def _client_ended(self, stream: Stream) -> None:
        if stream.trailers is not None:
            return
        if stream.unread:
            self._end(stream, Status.INTERNAL, "half a message")
        elif stream.call is None or stream.call.ends_with_client:
            self._end(stream, Status.OK)

    def _take_headers(self, flags: int, number: int, block: bytearray) -> None:
        if number % 2 == 0:
            raise Http2Error(Error.PROTOCOL_ERROR, "headers of a stream with an even number")
        if len(block) > MAX_HEADERS_BYTES:
            raise Http2Error(Error.ENHANCE_YOUR_CALM, "too many headers")
        if not flags & frames.END_HEADERS:
            self._headers = number, flags, block
            return
        self._headers = None
        head = self._blocks.read(
            bytes(block)
        )  # Also of a stream that is over: it may change the table.
        ends = bool(flags & frames.END_STREAM)
        stream = self._streams.get(number)
        if stream is not None:
            self._trailers(stream, head, ends=ends)
        elif number <= self._began:
            self._headers_of_none(number, ends=ends)
        else:
            self._began = number
            if self._is_closing or len(self._streams) >= MAX_STREAMS:
                self._refuse(number, Error.REFUSED_STREAM, ends=ends)
            elif head.fault is not None or (ends and head.length):
                self._refuse(number, Error.PROTOCOL_ERROR, ends=ends)
            else:
                self._last = number
                self._open(number, head, ends=ends)

    def _trailers(self, stream: Stream, head: Head, *, ends: bool) -> None:
        """Take what ends a request: it says nothing, but that."""
        if stream.ended:
            self._break(stream, Error.STREAM_CLOSED)
        elif not ends or head.trailing_fault is not None or stream.length:
            self._break(stream, Error.PROTOCOL_ERROR)
        else:
            stream.ended = True
            self._client_ended(stream)

    def _headers_of_none(self, number: int, *, ends: bool) -> None:
        how = self._ended.how(number)
        if how is End.UNKNOWN:
            raise Http2Error(Error.PROTOCOL_ERROR, "streams that do not begin in order")
        if how is End.CLIENT or not ends:
            raise Http2Error(Error.STREAM_CLOSED, "headers of a stream that is over")
        self._ended.add(number, by_client=True)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._headers is None or self._headers[0] != number:
            raise Http2Error(Error.PROTOCOL_ERROR, "a continuation of nothing")
        self._continuations += 1
        if self._continuations > MAX_CONTINUATIONS:
            raise Http2Error(Error.ENHANCE_YOUR_CALM, "headers that go on and on")
        _, first, block = self._headers
        block += payload
        self._take_headers(first | flags & frames.END_HEADERS, number, block)

    def _open(self, number: int, head: Head, *, ends: bool) -> None:
        stream = Stream(number, window=self._sending.stream_window, room=STREAM_WINDOW)
        self._streams[number] = stream
        stream.ended, stream.length = ends, head.length
        refusal = refusal_of(head)
        if refusal is not None:
            self._finish(stream, refusal)
            return

        def send(raw: bytes) -> None:
            if self._streams.get(number) is stream and stream.trailers is None:
                self._send(stream, (raw,))
                self._count(stream)

        path = head.fields[":path"]
        stream.call = self._serve(path, send)
        if stream.call is None:
            self._end(stream, Status.UNIMPLEMENTED, f"no such method: {path[:200]}")
        elif ends:
            self._client_ended(stream)

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Error.FRAME_SIZE_ERROR, "RST_STREAM has four bytes")
        if number % 2 == 0 or number > self._began:
            raise Http2Error(Error.PROTOCOL_ERROR, "RST_STREAM of a stream that never began")
        stream = self._streams.get(number)
        if stream is None:
            self._ended.add(number, by_client=True)
            return
        stream.ended = True
        self._drop(stream)
        if not stream.has_asked:
            self._patience.spend(self._now, "requests that ask nothing")

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(Error.PROTOCOL_ERROR, "settings of a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(Error.FRAME_SIZE_ERROR, "broken settings")
        if flags & frames.ACK:
            return
        if self._has_settings:
            self._patience.spend(self._now, "settings")
        self._has_settings = True
        for key, value in struct.iter_unpack(">HI", payload):
            frames.check_setting(key, value)
            if key == Setting.INITIAL_WINDOW_SIZE:
                self._sending.resize(value, self._streams.values())
            elif key == Setting.HEADER_TABLE_SIZE:
                self._sending.resize_table()
        self._sending.settled()

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(Error.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise Http2Error(Error.FRAME_SIZE_ERROR, "PING has eight bytes")
        if flags & frames.ACK:
            if payload == LEAVING and self._is_leaving and not self._is_closing:
                self._is_closing = True
                self.output.append(frames.goaway(self._last, Error.NO_ERROR))
            return
        if not self._has_asked:  # Clients that measure the line send one with their messages.
            self._patience.spend(self._now, "pings")
        self._has_asked = False
        self.output.append(frames.frame(Kind.PING, frames.ACK, 0, payload))

    def _priority(self, number: int, payload: bytes) -> None:
        if number == 0:
            raise Http2Error(Error.PROTOCOL_ERROR, "a priority of no stream")
        self._patience.spend(self._now, "priorities")
        if len(payload) != 5:
            stream = self._streams.get(number)
            if stream is None:
                raise Http2Error(Error.FRAME_SIZE_ERROR, "PRIORITY has five bytes")
            self._break(stream, Error.FRAME_SIZE_ERROR)

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Error.FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")
        by = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if number == 0:
            if not by:
                raise Http2Error(Error.PROTOCOL_ERROR, "a window that grows by nothing")
            self._sending.grow(by)
            return
        if number % 2 == 0 or number > self._began:
            raise Http2Error(Error.PROTOCOL_ERROR, "a window of a stream that never began")
        stream = self._streams.get(number)
        if stream is None:
            return  # It ended, and the client did not know.
        if not by:
            self._break(stream, Error.PROTOCOL_ERROR)
        elif not self._sending.grow_stream(stream, by):
            self._break(stream, Error.FLOW_CONTROL_ERROR)

    # What goes.

    def _send(self, stream: Stream, messages: Iterable[bytes]) -> None:
        raw = b"".join([frames.message(each) for each in messages])
        if raw:
            self._sending.messages(stream, raw)

    def _count(self, stream: Stream) -> None:
        """Take note of what waits here, and end the stream that makes it too much."""
        self._kept.count(stream)
        if self._kept.is_too_much and stream.kept and stream.number in self._streams:
            stream.pending.clear()
            self._end(stream, Status.RESOURCE_EXHAUSTED, "too much waits here")

    def _end(self, stream: Stream, status: Status, text: str = "") -> None:
        """End a call from here, once everything before is sent."""
        block = frames.TRAILERS_OK if status is Status.OK else frames.trailers(status, text)
        self._finish(stream, block if stream.has_answered else frames.RESPONSE_HEADERS + block)

    def _finish(self, stream: Stream, block: bytes) -> None:
        stream.trailers = block
        stream.unread.clear()
        self._sending.end(stream)

    def _refuse(self, number: int, code: Error, *, ends: bool) -> None:
        """Do not begin a stream."""
        self._ended.add(number, by_client=ends)
        self._patience.spend(self._now, "requests that are refused")
        self._sending.reset(number, code)

    def _break(self, stream: Stream, code: Error) -> None:
        """End a stream whose client does what it must not."""
        self._drop(stream)
        self._patience.spend(self._now, "errors")
        self._sending.reset(stream.number, code)

    def _over(self, stream: Stream) -> None:
        """Forget a stream whose end was sent."""
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        self._ended.add(stream.number, by_client=stream.ended)
        self._sending.forget(stream)
        call, stream.call = stream.call, None
        if call is not None:
            try:
                call.close()
            except Exception as error:  # noqa: BLE001 - one call must not end the others
                self._failed(error)
