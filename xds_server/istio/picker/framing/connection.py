"""One connection of a gRPC client: bytes in, calls served, bytes out. No I/O and no clock.

Only what gRPC needs of HTTP/2: requests are POSTs, messages are not compressed, priorities are ignored, nothing is
pushed. What we receive is taken in at once, so our windows are as good as open; what we send waits for the
other side's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.calls import CallError, Serve
from xds_server.istio.picker.framing.frames import Error, Http2Error, Kind, Setting, Status
from xds_server.istio.picker.framing.header_blocks import HeaderBlocks
from xds_server.istio.picker.framing.stream import Stream

WINDOW = 1 << 30
"""What a stream, and the connection, may send before we say more ..."""
TOP_UP = 1 << 29
"""... which we do when so much has come."""
MAX_HEADERS_BYTES = 64 * 1024
MAX_STREAMS = 100_000
_DATA = int(Kind.DATA)
GREETING = frames.settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: WINDOW,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
    }
) + frames.window_update(0, WINDOW - frames.DEFAULT_WINDOW)


class Connection:
    """A connection. Feed it with `receive`, send what `output` has."""

    def __init__(
        self, serve: Serve, *, max_message_bytes: int, failed: Callable[[BaseException], None]
    ) -> None:
        """Serve calls.

        Args:
            serve: Makes calls.
            max_message_bytes: A larger message ends its call.
            failed: Told whatever a call raises that is no `CallError`; the call ends, the connection stays.
        """
        self._serve = serve
        self._max_message = max_message_bytes
        self._failed = failed
        self._rest = b""
        self._is_greeted = False
        self._streams: dict[int, Stream] = {}
        self._blocked: dict[int, None] = {}
        """Streams with something pending, in the order in which they wait."""
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._received = 0
        self._began = 0
        """The highest stream that began."""
        self._last = 0
        """The highest one that is served."""
        self._headers: tuple[int, int, bytearray] | None = None
        """Stream, flags and block of headers that go on in the next frame."""
        self._blocks = HeaderBlocks(MAX_HEADERS_BYTES)
        self._is_closing = False
        self.output: list[bytes] = [GREETING]
        """To be sent."""

    @property
    def streams(self) -> int:
        """Calls that are open."""
        return len(self._streams)

    def receive(self, data: bytes) -> None:
        """Take bytes in.

        Raises:
            Http2Error: The connection is over; send `output`, which says why, and close.
        """
        try:
            self._receive(data)
        except Http2Error as error:
            self.output.append(frames.goaway(self._last, error.code, str(error)))
            raise

    def go_away(self) -> None:
        """Begin no more calls; those that are open go on."""
        if not self._is_closing:
            self._is_closing = True
            self.output.append(frames.goaway(self._last, Error.NO_ERROR))

    def close(self) -> None:
        """The connection is gone: end all calls."""
        streams, self._streams = self._streams, {}
        self._blocked.clear()
        for stream in streams.values():
            self._over(stream)

    # What comes.

    def _receive(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        if not self._is_greeted:
            if not data.startswith(frames.PREFACE[:size]):
                raise Http2Error(Error.PROTOCOL_ERROR, "expected HTTP/2 without TLS")
            if size < len(frames.PREFACE):
                self._rest = data
                return
            at, self._is_greeted = len(frames.PREFACE), True
        while size - at >= frames.HEAD_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > frames.MAX_FRAME_BYTES:
                raise Http2Error(Error.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + frames.HEAD_BYTES
            end = start + length
            if end > size:
                break
            number = int.from_bytes(data[at + 5 : start], "big") & frames.MAX_WINDOW
            self._frame(data[at + 3], data[at + 4], number, data[start:end])
            at = end
        self._rest = data[at:]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._headers is not None and kind != Kind.CONTINUATION:
            raise Http2Error(Error.PROTOCOL_ERROR, "headers that do not go on")
        if kind == _DATA:
            self._data(flags, number, payload)
        elif kind == Kind.HEADERS:
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
        # GOAWAY: the client begins no more streams and closes when it has read what it waits for. PRIORITY and
        # what is not known is ignored.

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._received += size
        if self._received >= TOP_UP:
            self.output.append(frames.window_update(0, self._received))
            self._received = 0
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            if number == 0 or number > self._began or stream is not None:
                raise Http2Error(Error.PROTOCOL_ERROR, "data of a stream that is not open")
            return  # It ended here, and the client does not know yet.
        stream.received += size
        if stream.received >= TOP_UP:
            self.output.append(frames.window_update(number, stream.received))
            stream.received = 0
        stream.ended = bool(flags & frames.END_STREAM)
        if flags & frames.PADDED:
            payload = frames.unpadded(payload, flags & frames.PADDED)
        self._take(stream, payload)
        if stream.ended and number in self._streams:
            self._client_ended(stream)

    def _take(self, stream: Stream, payload: bytes) -> None:
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
                return
            body = bytes(memoryview(unread)[5 : 5 + size])
            compressed = unread[0]
            del unread[: 5 + size]
            self._message(stream, compressed, body)

    def _message(self, stream: Stream, compressed: int, body: bytes) -> None:
        if compressed:
            self._end(stream, Status.UNIMPLEMENTED, "compressed messages are not taken")
            return
        if stream.trailers is not None or stream.call is None:
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
        if len(block) > MAX_HEADERS_BYTES:
            raise Http2Error(Error.ENHANCE_YOUR_CALM, "too many headers")
        if not flags & frames.END_HEADERS:
            self._headers = number, flags, block
            return
        self._headers = None
        fields = self._blocks.read(bytes(block))
        stream = self._streams.get(number)
        if stream is not None:
            # Trailers of the client: they say nothing, but that it is done.
            if not flags & frames.END_STREAM or stream.ended:
                raise Http2Error(Error.PROTOCOL_ERROR, "headers in the middle of a stream")
            stream.ended = True
            self._client_ended(stream)
            return
        if number <= self._began:
            if not flags & frames.END_STREAM:
                raise Http2Error(Error.STREAM_CLOSED, "headers of a stream that is over")
            return
        if number % 2 == 0:
            raise Http2Error(Error.PROTOCOL_ERROR, "a stream with an even number")
        self._began = number
        if self._is_closing or len(self._streams) >= MAX_STREAMS:
            self.output.append(frames.reset(number, Error.REFUSED_STREAM))
            return
        self._last = number
        self._open(number, fields, ended=bool(flags & frames.END_STREAM))

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._headers is None or self._headers[0] != number:
            raise Http2Error(Error.PROTOCOL_ERROR, "a continuation of nothing")
        _, first, block = self._headers
        block += payload
        self._take_headers(first | flags & frames.END_HEADERS, number, block)

    def _open(self, number: int, fields: dict[str, str], *, ended: bool) -> None:
        stream = self._streams[number] = Stream(number, self._stream_window)
        stream.ended = ended
        if not fields.get("content-type", "").startswith("application/grpc"):
            self._end(stream, Status.INVALID_ARGUMENT, "expected content-type application/grpc")
            return

        def send(raw: bytes) -> None:
            if self._streams.get(number) is stream and stream.trailers is None:
                self._send(stream, (raw,))

        path = fields.get(":path", "")
        stream.call = self._serve(path, send)
        if stream.call is None:
            self._end(stream, Status.UNIMPLEMENTED, f"no such method: {path[:200]}")
        elif ended:
            self._client_ended(stream)

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Error.FRAME_SIZE_ERROR, "RST_STREAM has four bytes")
        if number == 0 or number > self._began:
            raise Http2Error(Error.PROTOCOL_ERROR, "RST_STREAM of a stream that never began")
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._blocked.pop(number, None)
            self._over(stream)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(Error.PROTOCOL_ERROR, "broken settings")
        if flags & frames.ACK:
            return
        for key, value in struct.iter_unpack(">HI", payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise Http2Error(Error.FLOW_CONTROL_ERROR, "a window that is too large")
                change, self._stream_window = value - self._stream_window, value
                for stream in self._streams.values():
                    stream.window += change
        self.output.append(frames.frame(Kind.SETTINGS, frames.ACK, 0))
        self._unblock()

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise Http2Error(Error.FRAME_SIZE_ERROR, "PING has eight bytes")
        if not flags & frames.ACK:
            self.output.append(frames.frame(Kind.PING, frames.ACK, 0, payload))

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(Error.FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")
        by = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if not by:
            raise Http2Error(Error.PROTOCOL_ERROR, "a window that grows by nothing")
        if number == 0:
            self._window += by
            if self._window > frames.MAX_WINDOW:
                raise Http2Error(Error.FLOW_CONTROL_ERROR, "a window that is too large")
            self._unblock()
        elif (stream := self._streams.get(number)) is not None:
            stream.window += by
            if stream.window > frames.MAX_WINDOW:
                raise Http2Error(Error.FLOW_CONTROL_ERROR, "a window that is too large")
            if number in self._blocked:
                self._unblock()

    # What goes.

    def _send(self, stream: Stream, messages: Iterable[bytes]) -> None:
        raw = b"".join([frames.message(each) for each in messages])
        if not raw:
            return
        if not stream.has_answered:
            stream.has_answered = True
            self.output.append(
                frames.frame(
                    Kind.HEADERS, frames.END_HEADERS, stream.number, frames.RESPONSE_HEADERS
                )
            )
        if not stream.pending and len(raw) <= stream.window and len(raw) <= self._window:
            stream.window -= len(raw)
            self._window -= len(raw)
            self.output.append(frames.data(stream.number, raw))
            return
        stream.pending += raw
        self._flush(stream)

    def _flush(self, stream: Stream) -> None:
        """Send what the windows allow."""
        room = min(len(stream.pending), stream.window, self._window)
        if room > 0:
            stream.window -= room
            self._window -= room
            self.output.append(frames.data(stream.number, bytes(memoryview(stream.pending)[:room])))
            del stream.pending[:room]
        if stream.pending:
            self._blocked[stream.number] = None
            return
        self._blocked.pop(stream.number, None)
        if stream.trailers is not None:
            self._finish(stream)

    def _unblock(self) -> None:
        for number in list(self._blocked):
            if self._window <= 0:
                return
            self._flush(self._streams[number])

    def _end(self, stream: Stream, status: Status, text: str = "") -> None:
        """End a call from here, once everything before is sent."""
        stream.trailers = (
            frames.TRAILERS_OK if status is Status.OK else frames.trailers(status, text)
        )
        stream.unread.clear()
        if not stream.pending:
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        assert stream.trailers is not None
        block = stream.trailers
        if not stream.has_answered:
            block = frames.RESPONSE_HEADERS + block
        flags = frames.END_HEADERS | frames.END_STREAM
        self.output.append(frames.frame(Kind.HEADERS, flags, stream.number, block))
        if not stream.ended:
            # Whatever the client still wants to say, nobody listens.
            self.output.append(frames.reset(stream.number, Error.NO_ERROR))
        self._streams.pop(stream.number, None)
        self._over(stream)

    def _over(self, stream: Stream) -> None:
        call, stream.call = stream.call, None
        if call is not None:
            try:
                call.close()
            except Exception as error:  # noqa: BLE001 - one call must not end the others
                self._failed(error)
