"""What every proxy has, type by type: the table behind /debug/syncz and CSDS."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from xds_server.xds.answer import Protocol
from xds_server.xds.channel import Channel
from xds_server.xds.node import Proxy

if TYPE_CHECKING:
    from xds_server.xds.stream import Stream


class SyncState(StrEnum):
    """How a proxy stands in one type."""

    SYNCED = "synced"
    """It accepted everything there is for it."""
    STALE = "stale"
    """A response is under way, or waits for its turn."""
    NOT_SENT = "not_sent"
    """It asked and nothing was there to send."""
    ERROR = "error"
    """It refused something and still runs on what it had before."""


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type on one stream. Ages are in seconds, None when it never happened."""

    type_url: str
    state: SyncState
    sent_version: str
    acked_version: str
    sent_age_s: float | None
    acked_age_s: float | None
    lag_s: float | None
    """From sending to acceptance of the last accepted response; while one is under way, its age."""
    nacks: int
    """Responses refused on this stream."""
    error: str
    """Text of the last NACK, until everything is accepted again."""
    error_version: str
    error_names: tuple[str, ...]
    """The resources held responsible; they are kept as they were."""
    error_age_s: float | None
    subscribed: int
    """Number of names subscribed explicitly."""
    wildcard: bool


@dataclass(frozen=True, slots=True)
class ProxyStatus:
    """One stream."""

    proxy: Proxy
    protocol: Protocol
    connected_s: float
    types: tuple[TypeStatus, ...]
    part: float | None = None
    """What it may admit of every limit of the fleet, 0-1; None where nothing is limited, or it has no part yet."""


def worst(states: Iterable[SyncState]) -> SyncState:
    """Return the state that a person must see first; a proxy that asked for nothing has nothing."""
    found = set(states)
    for state in (SyncState.ERROR, SyncState.STALE, SyncState.NOT_SENT):
        if state in found:
            return state
    return SyncState.SYNCED if found else SyncState.NOT_SENT


def status_of(stream: Stream, now: float, part: float | None = None) -> ProxyStatus:
    """Describe a stream whose proxy is known; `now` is the loop's time, `part` the proxy's part of the limits."""
    assert stream.proxy is not None
    channels = stream.session.channels.values()
    types = tuple(_type_status(each, now, behind=stream.is_behind) for each in channels)
    return ProxyStatus(stream.proxy, stream.protocol, now - stream.opened_at, types, part)


def _type_status(channel: Channel, now: float, *, behind: bool) -> TypeStatus:
    refusal = channel.refusal
    sent = not channel.fresh
    lag = channel.lag_s if channel.pending is None else now - channel.sent_at
    return TypeStatus(
        type_url=channel.type_url,
        state=_state(channel, behind=behind),
        sent_version=channel.sent_version,
        acked_version=channel.acked_version,
        sent_age_s=now - channel.sent_at if sent else None,
        acked_age_s=now - channel.acked_at if channel.acked_version else None,
        lag_s=lag,
        nacks=channel.nacks,
        error=refusal.error if refusal else "",
        error_version=refusal.version if refusal else "",
        error_names=tuple(sorted(refusal.names)) if refusal else (),
        error_age_s=now - refusal.at if refusal else None,
        subscribed=len(channel.subscription.names),
        wildcard=channel.subscription.wildcard,
    )


def _state(channel: Channel, *, behind: bool) -> SyncState:
    if channel.refusal is not None:
        return SyncState.ERROR
    if channel.pending is not None:
        return SyncState.STALE
    if channel.fresh:
        return SyncState.NOT_SENT
    return SyncState.STALE if channel.due or behind else SyncState.SYNCED
