"""What goes to the client, as its windows allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.frames import Error, Http2Error, Kind
from xds_server.istio.picker.framing.kept import Kept
from xds_server.istio.picker.framing.stream import Stream

_NO_TABLE = b"\x20"
"""A dynamic table of no bytes from here on (RFC 7541, 6.3): a client that allows less than the default insists on
being told, and ours is always empty."""


class Sending:
    """Writes frames to `output`, and keeps what may not be sent yet."""

    def __init__(
        self, *, kept: Kept, eased: Callable[[Stream], None], over: Callable[[Stream], None]
    ) -> None:
        """Send.

        Args:
            kept: Counts what waits.
            eased: Told when something of a stream was sent that had waited.
            over: Told when the end of a stream was sent.
        """
        self.output: list[bytes] = []
        """To be sent."""
        self.stream_window = frames.DEFAULT_WINDOW
        """What new streams may send."""
        self._window = frames.DEFAULT_WINDOW
        self._blocked: dict[int, Stream] = {}
        """Streams with something pending, in the order in which they wait."""
        self._kept = kept
        self._eased = eased
        self._over = over
        self._before_block = b""

    def messages(self, stream: Stream, raw: bytes) -> None:
        """Send messages of a stream."""
        if not stream.has_answered:
            stream.has_answered = True
            block = self._block(frames.RESPONSE_HEADERS)
            self.output.append(frames.frame(Kind.HEADERS, frames.END_HEADERS, stream.number, block))
        size = len(raw)
        if not stream.pending and size <= stream.window and size <= self._window:
            stream.window -= size
            self._window -= size
            self.output.append(frames.data(stream.number, raw))
            return
        stream.pending += raw
        self._flush(stream)

    def end(self, stream: Stream) -> None:
        """Send the trailers of a stream, now or after what is pending."""
        if not stream.pending:
            self._finish(stream)

    def reset(self, number: int, code: Error) -> None:
        """End a stream without trailers."""
        self.output.append(frames.reset(number, code))

    def forget(self, stream: Stream) -> None:
        """Send nothing more of a stream."""
        self._blocked.pop(stream.number, None)
        stream.pending.clear()
        stream.unread.clear()
        self._kept.count(stream)

    # What the client says of its windows.

    def grow(self, by: int) -> None:
        """Send more, of all streams together.

        Raises:
            Http2Error: That is more than a window may be.
        """
        self._window += by
        if self._window > frames.MAX_WINDOW:
            raise Http2Error(Error.FLOW_CONTROL_ERROR, "a window that is too large")
        self._unblock()

    def grow_stream(self, stream: Stream, by: int) -> bool:
        """Send more of a stream; return False if that is more than a window may be."""
        stream.window += by
        if stream.window > frames.MAX_WINDOW:
            return False
        if stream.number in self._blocked:
            self._unblock()
        return True

    def resize(self, window: int, streams: Iterable[Stream]) -> None:
        """Change the window that streams begin with, also for those that began.

        Raises:
            Http2Error: That is more than a window may be.
        """
        change, self.stream_window = window - self.stream_window, window
        for stream in streams:
            stream.window += change
            if stream.window > frames.MAX_WINDOW:
                raise Http2Error(Error.FLOW_CONTROL_ERROR, "a window that is too large")

    def resize_table(self) -> None:
        """Say with the next block of headers that there is no dynamic table."""
        self._before_block = _NO_TABLE

    def settled(self) -> None:
        """Take over the client's settings."""
        self.output.append(frames.frame(Kind.SETTINGS, frames.ACK, 0))
        self._unblock()

    def _block(self, block: bytes) -> bytes:
        before, self._before_block = self._before_block, b""
        return before + block

    def _flush(self, stream: Stream) -> None:
        """Send what the windows allow."""
        room = min(len(stream.pending), stream.window, self._window)
        if room > 0:
            stream.window -= room
            self._window -= room
            self.output.append(frames.data(stream.number, bytes(memoryview(stream.pending)[:room])))
            del stream.pending[:room]
        self._kept.count(stream)
        if stream.pending:
            self._blocked[stream.number] = stream
            return
        self._blocked.pop(stream.number, None)
        if stream.trailers is not None:
            self._finish(stream)

    def _unblock(self) -> None:
        for stream in list(self._blocked.values()):
            if self._window <= 0:
                return
            self._flush(stream)
            self._eased(stream)

    def _finish(self, stream: Stream) -> None:
        assert stream.trailers is not None
        block = self._block(stream.trailers)
        flags = frames.END_HEADERS | frames.END_STREAM
        self.output.append(frames.frame(Kind.HEADERS, flags, stream.number, block))
        if not stream.ended:
            # Whatever the client still wants to say, nobody listens.
            self.output.append(frames.reset(stream.number, Error.NO_ERROR))
        self._over(stream)
