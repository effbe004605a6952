"""What a request of the incremental protocol means (pure): rules R29-R39 of docs/xds.md.

A nonce only tells which response is ACKed or NACKed; subscriptions count whatever the nonce says (R35).
"""

from __future__ import annotations

from collections.abc import Callable

from xds_server.xds.channel import Channel
from xds_server.xds.events import Acked, Event, Ignored, Nacked
from xds_server.xds.exchange import Exchange
from xds_server.xds.requests import DeltaRequest
from xds_server.xds.subscription import WILDCARD, incremental


def take(
    exchange: Exchange, request: DeltaRequest, tell: Callable[[Event], None], now: float
) -> None:
    """Take a request of a known type in; `tell` hears what it says of an earlier response."""
    channel = exchange.channels.get(request.type_url)
    subscribe, unsubscribe = request.subscribe, request.unsubscribe
    if channel is None:
        wanted = incremental(
            None, subscribe=subscribe, unsubscribe=unsubscribe, type_url=request.type_url
        )
        channel = exchange.open(request.type_url, wanted)
        exchange.recall(channel, request.known)
    else:
        _settle(exchange, channel, request, tell, now)
    if subscribe or unsubscribe:
        _subscribe(exchange, channel, subscribe, unsubscribe)


def _settle(
    exchange: Exchange,
    channel: Channel,
    request: DeltaRequest,
    tell: Callable[[Event], None],
    now: float,
) -> None:
    pending = channel.pending
    if not request.nonce:
        return
    if pending is None or request.nonce != pending.nonce:
        tell(Ignored(channel.type_url, "stale_nonce"))
    elif request.error is None:
        exchange.ack(channel, now)
        tell(Acked(channel.type_url, pending.version, now - channel.sent_at))
    else:
        refusal = exchange.nack(channel, request.error, now)
        tell(Nacked(channel.type_url, pending.version, refusal.error, refusal.names))


def _subscribe(
    exchange: Exchange, channel: Channel, subscribe: frozenset[str], unsubscribe: frozenset[str]
) -> None:
    """Change the subscription; every name it touches is looked at anew.

    Named again: sent again, or reported as missing (R30, R31). Given up under a wildcard: the client
    dropped it and has to be told what the wildcard says of it (R33). Given up otherwise: forgotten.
    """
    old = channel.subscription
    new = incremental(old, subscribe=subscribe, unsubscribe=unsubscribe, type_url=channel.type_url)
    touched = (subscribe | (unsubscribe & old.names)) - {WILDCARD}
    channel.subscription = new
    kept = frozenset(each for each in touched if new.wants(each))
    exchange.forget(channel, touched - kept)
    exchange.doubt(channel, kept)
    exchange.pardon(channel, touched)
