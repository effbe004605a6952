"""The server's half of one stream: requests, snapshots and time in, responses out (pure).

What a request means is the protocol's business (`sotw`, `delta`); what goes out follows from the `Exchange`.
The transport sees nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xds_server.resources.snapshot import Snapshot
from xds_server.xds import delta, sotw
from xds_server.xds.answer import Protocol
from xds_server.xds.channel import Channel
from xds_server.xds.events import Event
from xds_server.xds.exchange import Exchange
from xds_server.xds.rendered import Rendered, Response


class Session:
    """One stream of either protocol."""

    __slots__ = ("_exchange", "_take", "_tell")

    def __init__(
        self, protocol: Protocol, rendered: Rendered, tell: Callable[[Event], None]
    ) -> None:
        self._exchange = Exchange(protocol, rendered)
        self._take: Callable[..., None] = sotw.take if protocol is Protocol.SOTW else delta.take
        self._tell = tell

    @property
    def deadline(self) -> float | None:
        """When `on_time` has to be called; None when never."""
        return self._exchange.deadline

    @property
    def channels(self) -> dict[str, Channel]:
        """The state of each type, for status pages; not to be changed."""
        return self._exchange.channels

    def on_request(self, request: Any, now: float) -> list[Response]:
        """Return the answers to a request of the protocol, of a known type."""
        self._take(self._exchange, request, self._tell, now)
        return self._exchange.advance(now)

    def on_snapshot(self, snapshot: Snapshot, now: float) -> list[Response]:
        """Return what a new snapshot makes necessary."""
        self._exchange.publish(snapshot)
        return self._exchange.advance(now)

    def on_time(self, now: float) -> list[Response]:
        """Return what no longer has to wait."""
        return self._exchange.advance(now)
