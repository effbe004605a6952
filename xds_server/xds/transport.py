"""The gRPC server all services share, and the settings that decide what it can carry.

The numbers behind the options were measured with a thousand streams on two cores; defaults are bad for a
control plane.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import grpc

_PENDING_REQUESTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """What an operator may choose."""

    max_receive_bytes: int = 16 * 2**20
    """Larger requests end their stream with RESOURCE_EXHAUSTED. A delta reconnect names every resource
    with its version: 60,000 of them are over the default of 4 MiB."""
    keepalive_s: float = 30.0
    """A proxy that vanished without a word is noticed after this and `keepalive_timeout_s`."""
    keepalive_timeout_s: float = 10.0


def options(settings: TransportSettings | None = None) -> list[tuple[str, int]]:
    """Return the channel arguments of the server."""
    chosen = settings or TransportSettings()
    return [
        # Probing costs a PING around every push: 15-30 % of the CPU. Off, it also bounds what a flooding
        # agent can make us buffer.
        ("grpc.http2.bdp_probe", 0),
        # Defaults of 1,000 and 3,000 silently cancel up to a fifth of the streams when more proxies than
        # that reconnect at once.
        ("grpc.server.max_pending_requests", _PENDING_REQUESTS),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_REQUESTS),
        # With the default two servers bind the same port without an error.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", chosen.max_receive_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", int(chosen.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(chosen.keepalive_timeout_s * 1000)),
        # Without it the answer to a keepalive ping is awaited for a minute, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(chosen.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients ping as they like (istiod every 30 s, Envoy and agents as configured): never a GOAWAY
        # "too_many_pings".
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def make_server(settings: TransportSettings | None = None) -> Any:
    """Return a `grpc.aio.Server` with the options above, without handlers and ports."""
    return grpc.aio.server(options=options(settings))


def tune_gc() -> None:
    """Keep the garbage collector from walking thousands of streams during a push.

    To be called once, when everything is set up: what lives then is never looked at again.
    """
    gc.collect()
    gc.freeze()
    # An evaluation of ten thousand instances makes some 50,000 objects before it lets go of the old ones:
    # a smaller threshold has the collector walk them all, for nothing, every other second.
    gc.set_threshold(200_000, 50, 1000)
