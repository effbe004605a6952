"""A state-of-the-world stream: requests, snapshots and time in, responses out (pure).

Rules R1-R28 of docs/xds.md; the transport sees only `on_request`, `on_snapshot`, `on_time` and `deadline`.
"""

from __future__ import annotations

from collections.abc import Callable

from xds_server.resources.snapshot import Snapshot
from xds_server.xds.answer import Protocol
from xds_server.xds.channel import NONE, Channel
from xds_server.xds.events import Acked, Event, Ignored, Nacked
from xds_server.xds.exchange import Exchange
from xds_server.xds.rendered import Rendered, Response
from xds_server.xds.requests import SotwRequest
from xds_server.xds.subscription import FULL_STATE, Subscription, state_of_the_world


class SotwSession:
    """The server's half of one SotW stream."""

    __slots__ = ("_exchange", "_tell")

    def __init__(self, rendered: Rendered, tell: Callable[[Event], None]) -> None:
        self._exchange = Exchange(Protocol.SOTW, rendered)
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

    def on_request(self, request: SotwRequest, now: float) -> list[Response]:
        """Return the answers to a request of a known type."""
        exchange = self._exchange
        channel = exchange.channels.get(request.type_url)
        if channel is None:
            subscription = state_of_the_world(None, request.names, type_url=request.type_url)
            exchange.open(request.type_url, subscription)
            return exchange.advance(now)
        repeated = self._settle(channel, request, now)
        subscription = state_of_the_world(
            channel.subscription, request.names, type_url=request.type_url
        )
        if subscription is not channel.subscription:
            channel.warming = NONE
            self._subscribe(channel, subscription)
        elif repeated and channel.warming:
            # Envoy asks again for the endpoints of clusters that CDS changed: same names, version, nonce.
            exchange.doubt(channel, channel.warming)
            channel.warming = NONE
        return exchange.advance(now)

    def _settle(self, channel: Channel, request: SotwRequest, now: float) -> bool:
        """Match the request with the pending response; return whether it is a repeated request."""
        pending = channel.pending
        if pending is None:
            return request.nonce == channel.nonce and request.error is None
        if request.nonce != pending.nonce:
            # The client had not seen the newest response. Its names count all the same: no other request
            # may follow that repeats them (envoy#10363). What it waits for is under way.
            self._tell(Ignored(channel.type_url, "stale_nonce"))
            channel.warming = NONE
            return False
        if request.error is None:
            self._exchange.ack(channel, now)
            self._tell(Acked(channel.type_url, pending.version, now - channel.sent_at))
            return False
        refusal = self._exchange.nack(channel, request.error, now)
        self._tell(Nacked(channel.type_url, pending.version, refusal.error, refusal.names))
        return False

    def _subscribe(self, channel: Channel, new: Subscription) -> None:
        """Change the subscription: names that came are sent whatever is held (R18, R19).

        What went is dropped by the client itself. What came is asked for; where responses come in parts it
        counts as not held as well, even if a response under way holds it.
        """
        exchange, old = self._exchange, channel.subscription
        channel.subscription = new
        came, went = new.names - old.names, old.names - new.names
        views = (channel.held, channel.pending.view) if channel.pending else (channel.held,)
        unwanted = {name for view in views for name in view.held if not new.wants(name)}
        exchange.forget(channel, went.union(unwanted))
        if channel.type_url in FULL_STATE:
            channel.forgotten -= came
        else:
            exchange.doubt(channel, came)
        channel.asked = (channel.asked | came) & new.names
        exchange.pardon(channel, came | went)
