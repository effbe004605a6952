"""Requests as the sessions see them: values without protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xds_server.xds.node import Proxy


@dataclass(frozen=True, slots=True)
class SotwRequest:
    """A DiscoveryRequest."""

    type_url: str
    names: frozenset[str] = frozenset()
    version: str = ""
    nonce: str = ""
    error: str | None = None
    """Text of `error_detail`; None when there is none, which is what tells an ACK from a NACK (R10)."""
    proxy: Proxy | None = None
    """The sender, when the request carries a node."""


@dataclass(frozen=True, slots=True)
class DeltaRequest:
    """A DeltaDiscoveryRequest."""

    type_url: str
    subscribe: frozenset[str] = frozenset()
    unsubscribe: frozenset[str] = frozenset()
    known: Mapping[str, str] = field(default_factory=dict)
    """`initial_resource_versions`: versions by name that survived a reconnect."""
    nonce: str = ""
    error: str | None = None
    proxy: Proxy | None = None
