"""One stream of a connection: what came of a message, and what waits to be sent."""

from __future__ import annotations

from xds_server.istio.picker.framing.calls import Call


class Stream:
    """A call, as HTTP/2 sees it."""

    __slots__ = (
        "call",
        "ended",
        "has_answered",
        "number",
        "pending",
        "received",
        "trailers",
        "unread",
        "window",
    )

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.window = window
        """Bytes that may be sent."""
        self.call: Call | None = None
        self.unread = bytearray()
        """Of a message that is not whole yet."""
        self.received = 0
        """Bytes since the window was topped up."""
        self.pending = bytearray()
        """Bytes that wait for the window."""
        self.trailers: bytes | None = None
        """The block that ends the call once nothing is pending."""
        self.has_answered = False
        self.ended = False
        """The client has nothing more to say."""
