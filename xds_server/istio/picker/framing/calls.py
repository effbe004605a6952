"""What is served over a connection: one call per stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from xds_server.istio.picker.framing.frames import Status

Send = Callable[[bytes], None]
"""Sends a message of a call's own accord."""


class CallError(Exception):
    """Ends a call with a status; the text is for the other side."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Call(Protocol):
    """One call, from its first message to its end. Nothing in it may wait."""

    def take(self, raw: bytes, /) -> Iterable[bytes]:
        """Return the answers to a message.

        Raises:
            CallError: The call is over.
        """
        ...

    @property
    def ends_with_client(self) -> bool:
        """Whether the call is over when the client has nothing more to say."""
        ...

    def close(self) -> None:
        """Called once, however the call ended."""
        ...


Serve = Callable[[str, Send], Call | None]
"""Makes the call of a path; None = there is no such method."""
