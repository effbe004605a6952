"""What a request of the state-of-the-world protocol means (pure): rules R1-R28 of docs/xds.md."""

from __future__ import annotations

from collections.abc import Callable

from xds_server.xds.channel import NONE, Channel
from xds_server.xds.events import Acked, Event, Ignored, Nacked
from xds_server.xds.exchange import Exchange
from xds_server.xds.requests import SotwRequest
from xds_server.xds.subscription import FULL_STATE, Subscription, state_of_the_world


def take(
    exchange: Exchange, request: SotwRequest, tell: Callable[[Event], None], now: float
) -> None:
    """Take a request of a known type in; `tell` hears what it says of an earlier response."""
    channel = exchange.channels.get(request.type_url)
    if channel is None:
        subscription = state_of_the_world(None, request.names, type_url=request.type_url)
        exchange.open(request.type_url, subscription)
        return
    repeated = _settle(exchange, channel, request, tell, now)
    subscription = state_of_the_world(
        channel.subscription, request.names, type_url=request.type_url
    )
    if subscription is not channel.subscription:
        channel.warming = NONE
        _subscribe(exchange, channel, subscription)
    elif repeated and channel.warming:
        # Envoy asks again for the endpoints of clusters that CDS changed: same names, version, nonce.
        exchange.doubt(channel, channel.warming)
        channel.warming = NONE


def _settle(
    exchange: Exchange,
    channel: Channel,
    request: SotwRequest,
    tell: Callable[[Event], None],
    now: float,
) -> bool:
    """Match the request with the pending response; return whether it is a repeated request."""
    pending = channel.pending
    if pending is None:
        return request.nonce == channel.nonce and request.error is None
    if request.nonce != pending.nonce:
        # The client had not seen the newest response. Its names count all the same: no other request
        # may follow that repeats them (envoy#10363). What it waits for is under way.
        tell(Ignored(channel.type_url, "stale_nonce"))
        channel.warming = NONE
        return False
    if request.error is None:
        exchange.ack(channel, now)
        tell(Acked(channel.type_url, pending.version, now - channel.sent_at))
        return False
    refusal = exchange.nack(channel, request.error, now)
    tell(Nacked(channel.type_url, pending.version, refusal.error, refusal.names))
    return False


def _subscribe(exchange: Exchange, channel: Channel, new: Subscription) -> None:
    """Change the subscription: names that came are sent whatever is held (R18, R19).

    What went is dropped by the client itself. What came is asked for; where responses come in parts it
    counts as not held as well, even if a response under way holds it.
    """
    old = channel.subscription
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
