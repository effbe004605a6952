"""One stream of a connection: what came of a message, and what waits to be sent."""

from __future__ import annotations

from xds_server.istio.picker.framing.calls import Call


class Stream:
    """A call, as HTTP/2 sees it."""

    __slots__ = (
        "call", "ended", "has_answered", "has_asked", "kept", "length", "number", "pending", "received", "room",
        "trailers", "unread", "window",
    )  # fmt: skip

    def __init__(self, number: int, *, window: int, room: int) -> None:
        self.number = number
        self.window = window
        """Bytes that may be sent."""
        self.room = room
        """Bytes that the client may send."""
        self.call: Call | None = None
        self.length: int | None = None
        """Bytes of the body that are still to come, where the client says so."""
        self.has_asked = False
        """A whole message came."""
        self.unread = bytearray()
        """Of a message that is not whole yet."""
        self.received = 0
        """Bytes since the client's room was topped up."""
        self.pending = bytearray()
        """Bytes that wait for the window."""
        self.kept = 0
        """Bytes of both, as counted last."""
        self.trailers: bytes | None = None
        """The block that ends the call once nothing is pending."""
        self.has_answered = False
        self.ended = False
        """The client has nothing more to say."""
