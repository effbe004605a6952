"""Bytes as they arrive, as frames."""

from __future__ import annotations

from collections.abc import Iterator

from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.frames import Error, Http2Error

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream, payload."""


class FrameReader:
    """Splits what a client sends, in whichever pieces it comes."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_preface = False

    def read(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are whole now.

        Raises:
            Http2Error: It is no HTTP/2, or a frame is too large.
        """
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        if not self._has_preface:
            if not data.startswith(frames.PREFACE[:size]):
                raise Http2Error(Error.PROTOCOL_ERROR, "expected HTTP/2 without TLS")
            if size < len(frames.PREFACE):
                self._rest = data
                return
            at, self._has_preface = len(frames.PREFACE), True
        while size - at >= frames.HEAD_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > frames.MAX_FRAME_BYTES:
                raise Http2Error(Error.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = at + frames.HEAD_BYTES
            end = start + length
            if end > size:
                break
            number = int.from_bytes(data[at + 5 : start], "big") & frames.MAX_WINDOW
            yield data[at + 3], data[at + 4], number, data[start:end]
            at = end
        self._rest = data[at:]
