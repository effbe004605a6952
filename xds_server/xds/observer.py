"""Hooks for metrics and logs: the sessions themselves know neither."""

from __future__ import annotations

from typing import Protocol as Interface

from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy


class Observer(Interface):
    """Is told what happens on the streams; runs on the event loop and must be quick."""

    def stream_opened(self, *, protocol: Protocol) -> None:
        """A stream began; nothing is known of the proxy yet."""

    def stream_closed(self, *, protocol: Protocol, proxy: Proxy | None) -> None:
        """A stream ended, for whatever reason."""

    def request(self, *, proxy: Proxy, type_url: str) -> None:
        """A well-formed request came."""

    def response_sent(self, *, proxy: Proxy, type_url: str, size_bytes: int) -> None:
        """A response was handed to the transport."""

    def acked(self, *, proxy: Proxy, type_url: str, version: str, lag_s: float) -> None:
        """The proxy accepted a response, `lag_s` after it was handed over."""

    def nacked(
        self, *, proxy: Proxy, type_url: str, version: str, error: str, names: frozenset[str]
    ) -> None:
        """The proxy refused a response; `names` are the resources held responsible."""

    def ignored(self, *, proxy: Proxy | None, type_url: str, reason: str) -> None:
        """A request was not acted upon.

        `reason` is one of `unknown_type`, `stale_nonce`, `bad_request`. With `unknown_type` the URL is what
        the client made up: no label for a metric.
        """

    def refused(self, *, proxy: Proxy | None, peer: str, reason: str) -> None:
        """A stream was ended because of what the client at `peer` sent; `reason` was told to it."""


class Silent:
    """The observer that does nothing."""

    def stream_opened(self, *, protocol: Protocol) -> None:
        """Do nothing."""

    def stream_closed(self, *, protocol: Protocol, proxy: Proxy | None) -> None:
        """Do nothing."""

    def request(self, *, proxy: Proxy, type_url: str) -> None:
        """Do nothing."""

    def response_sent(self, *, proxy: Proxy, type_url: str, size_bytes: int) -> None:
        """Do nothing."""

    def acked(self, *, proxy: Proxy, type_url: str, version: str, lag_s: float) -> None:
        """Do nothing."""

    def nacked(
        self, *, proxy: Proxy, type_url: str, version: str, error: str, names: frozenset[str]
    ) -> None:
        """Do nothing."""

    def ignored(self, *, proxy: Proxy | None, type_url: str, reason: str) -> None:
        """Do nothing."""

    def refused(self, *, proxy: Proxy | None, peer: str, reason: str) -> None:
        """Do nothing."""
