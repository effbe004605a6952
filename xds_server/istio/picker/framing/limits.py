"""What a client is allowed, and what it is told of that first."""

from __future__ import annotations

from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.frames import Setting

WINDOW = 1 << 26
"""What all streams together may send before we say more, 64 MiB ..."""
STREAM_WINDOW = 1 << 22
"""... and one stream, 4 MiB: a body of a megabyte never waits ..."""
TOP_UP = 1 << 25
STREAM_TOP_UP = 1 << 21
"""... which we say when half of it has come."""
PENDING_BYTES = 1 << 20
"""A stream whose answers wait like this gets no more room until they are taken."""
MAX_HEADERS_BYTES = 16 * 1024
"""As gRPC's own servers. What a request says is in messages, not here."""
MAX_CONTINUATIONS = 16
"""Frames of one block of headers; those that are empty would go on for ever (CVE-2024-27316)."""
MAX_STREAMS = 10_000
"""At once; a gateway with more opens another connection."""

GREETING = frames.settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
    }
) + frames.window_update(0, WINDOW - frames.DEFAULT_WINDOW)
