"""An incremental stream: requests, snapshots and time in, responses out (pure).

Rules R29-R39 of docs/xds.md. A nonce only tells which response is ACKed or NACKed; subscriptions count
whatever the nonce says (R35).
"""

from __future__ import annotations

from collections.abc import Callable

from xds_server.resources.snapshot import Snapshot
from xds_server.xds.answer import Protocol
from xds_server.xds.channel import Channel
from xds_server.xds.events import Acked, Event, Ignored, Nacked
from xds_server.xds.exchange import Exchange
from xds_server.xds.rendered import Rendered, Response
from xds_server.xds.requests import DeltaRequest
from xds_server.xds.subscription import WILDCARD, incremental


class DeltaSession:
    """The server's half of one delta stream."""

    __slots__ = ("_exchange", "_tell")

    def __init__(self, rendered: Rendered, tell: Callable[[Event], None]) -> None:
        self._exchange = Exchange(Protocol.DELTA, rendered)
        self._tell = tell

    @property
    def deadline(self) -> float | None:
        """When `on_time` has to be called; None when never."""
        return self._exchange.deadline

    @property
    def channels(self) -> dict[str, Channel]:
        """The state of each type, for status pages; not to be changed."""
        return self._exchange.channels

    def on_snapshot(self, snapshot: Snapshot, now: float) -> list[Response]:
        """Return what a new snapshot makes necessary."""
        self._exchange.publish(snapshot)
        return self._exchange.advance(now)

    def on_time(self, now: float) -> list[Response]:
        """Return what no longer has to wait."""
        return self._exchange.advance(now)

    def on_request(self, request: DeltaRequest, now: float) -> list[Response]:
        """Return the answers to a request of a known type."""
        exchange = self._exchange
        channel = exchange.channels.get(request.type_url)
        subscribe, unsubscribe = request.subscribe, request.unsubscribe
        if channel is None:
            wanted = incremental(
                None, subscribe=subscribe, unsubscribe=unsubscribe, type_url=request.type_url
            )
            channel = exchange.open(request.type_url, wanted)
            exchange.recall(channel, request.known)
        else:
            self._settle(channel, request, now)
        if subscribe or unsubscribe:
            self._subscribe(channel, subscribe, unsubscribe)
        return exchange.advance(now)

    def _settle(self, channel: Channel, request: DeltaRequest, now: float) -> None:
        pending = channel.pending
        if not request.nonce:
            return
        if pending is None or request.nonce != pending.nonce:
            self._tell(Ignored(channel.type_url, "stale_nonce"))
        elif request.error is None:
            self._exchange.ack(channel, now)
            self._tell(Acked(channel.type_url, pending.version, now - channel.sent_at))
        else:
            refusal = self._exchange.nack(channel, request.error, now)
            self._tell(Nacked(channel.type_url, pending.version, refusal.error, refusal.names))

    def _subscribe(
        self, channel: Channel, subscribe: frozenset[str], unsubscribe: frozenset[str]
    ) -> None:
        """Change the subscription; every name it touches is looked at anew.

        Named again: sent again, or reported as missing (R30, R31). Given up under a wildcard: the client
        dropped it and has to be told what the wildcard says of it (R33). Given up otherwise: forgotten.
        """
        old = channel.subscription
        new = incremental(
            old, subscribe=subscribe, unsubscribe=unsubscribe, type_url=channel.type_url
        )
        touched = (subscribe | (unsubscribe & old.names)) - {WILDCARD}
        channel.subscription = new
        kept = frozenset(each for each in touched if new.wants(each))
        self._exchange.forget(channel, touched - kept)
        self._exchange.doubt(channel, kept)
        self._exchange.pardon(channel, touched)
