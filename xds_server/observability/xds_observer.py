"""What happens on the xDS streams, as counters and log lines."""

from __future__ import annotations

from collections.abc import Callable

from xds_server import logs
from xds_server.clock import Clock
from xds_server.observability.metrics import Tally
from xds_server.resources.capability import Capability
from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy

REFUSALS_GAP_S = 1.0
"""A client that is refused may be back at once, and a thousand of them too: one line in this time."""


class XdsObserver:
    """Counts, logs, and notices when the first proxy of a capability appears."""

    def __init__(self, tally: Tally, want: Callable[[Capability], None], clock: Clock) -> None:
        self._tally = tally
        self._want = want
        self._clock = clock
        self._refusals_untold = 0
        self._next_refusal_at = clock()
        self._wanted: set[Capability] = {Capability.COMPOSITE}
        self._log = logs.get("xds")
        self.on_accepted: Callable[[Proxy, str, str, float], None] | None = None
        """Told proxy, type URL, version, and the seconds from sending to acceptance."""

    def stream_opened(self, *, protocol: Protocol) -> None:
        """Count a stream."""
        self._tally.add("fleet_xds_streams_total", protocol.value)

    def stream_closed(self, *, protocol: Protocol, proxy: Proxy | None) -> None:
        """Say who left."""
        if proxy is not None:
            self._log.info(logs.PROXY_DISCONNECTED, proxy=proxy.id, protocol=protocol.value)

    def request(self, *, proxy: Proxy, type_url: str) -> None:
        """Count a request, and ask for the resources of a capability that is new."""
        self._tally.add("fleet_xds_requests_total", _short(type_url))
        if proxy.capability not in self._wanted:
            self._wanted.add(proxy.capability)
            self._want(proxy.capability)

    def response_sent(self, *, proxy: Proxy, type_url: str, size_bytes: int) -> None:
        """Count a response."""
        del proxy
        name = _short(type_url)
        self._tally.add("fleet_xds_pushes_total", name)
        self._tally.add("fleet_xds_pushed_bytes_total", name, by=size_bytes)

    def acked(self, *, proxy: Proxy, type_url: str, version: str, lag_s: float) -> None:
        """Count an ACK."""
        self._tally.add("fleet_xds_acks_total", _short(type_url))
        self._tally.observe("fleet_xds_ack_seconds", lag_s)
        if self.on_accepted is not None:
            self.on_accepted(proxy, type_url, version, lag_s)

    def nacked(
        self, *, proxy: Proxy, type_url: str, version: str, error: str, names: frozenset[str]
    ) -> None:
        """Report a NACK; the proxy keeps what it had."""
        self._tally.add("fleet_xds_nacks_total", _short(type_url))
        self._log.error(
            logs.XDS_NACK_RECEIVED,
            proxy=proxy.id,
            type=_short(type_url),
            version=version,
            error=error,
            resources=sorted(names),
        )

    def ignored(self, *, proxy: Proxy | None, type_url: str, reason: str) -> None:
        """Count a request that was not acted upon."""
        del proxy, type_url
        self._tally.add("fleet_xds_ignored_total", reason)

    def refused(self, *, proxy: Proxy | None, peer: str, reason: str) -> None:
        """Say who was refused and why; of many in a short time one, and how many there were before it."""
        now = self._clock()
        if now < self._next_refusal_at:
            self._refusals_untold += 1
            return
        self._log.info(
            logs.XDS_STREAM_REFUSED,
            proxy=None if proxy is None else proxy.id,
            peer=peer,
            reason=reason,
            untold=self._refusals_untold,
        )
        self._refusals_untold = 0
        self._next_refusal_at = now + REFUSALS_GAP_S


def _short(type_url: str) -> str:
    return type_url.rpartition(".")[2]
