"""What waits here: parts of messages that are not whole, and answers that the client does not take yet."""

from __future__ import annotations

from xds_server.istio.picker.framing.stream import Stream

MOST_KEPT_BYTES = 256 * 2**20
"""Of all connections together. A message of a gateway is about a megabyte at most, and whole within milliseconds."""


class Kept:
    """Counts the bytes of all streams, so that no number of slow clients fills the memory."""

    def __init__(self, most: int = MOST_KEPT_BYTES) -> None:
        """Allow `most` bytes."""
        self._most = most
        self.bytes = 0

    @property
    def is_too_much(self) -> bool:
        """Whether the stream that was counted last has to go."""
        return self.bytes > self._most

    def count(self, stream: Stream) -> None:
        """Take note of what a stream keeps now."""
        keeps = len(stream.unread) + len(stream.pending)
        self.bytes += keeps - stream.kept
        stream.kept = keeps
