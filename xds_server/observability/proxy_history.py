"""What proxies do, for the history: who came and went, who refuses what, who takes it again."""

from __future__ import annotations

from collections import Counter

from xds_server.observability.history import History
from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy
from xds_server.xds.observer import Observer


class ProxyHistory:
    """Passes everything on to another observer, and notes the changes.

    A proxy that refuses every push for the same reason is one row, not twenty per second; how many refusals
    there were is told when it takes a response again.
    """

    def __init__(self, inner: Observer, history: History) -> None:
        self._inner = inner
        self._history = history
        self._streams: Counter[str] = Counter()
        self._seen: set[int] = set()
        self._refused: dict[tuple[str, str], tuple[str, int]] = {}

    def stream_opened(self, *, protocol: Protocol) -> None:
        """Pass it on."""
        self._inner.stream_opened(protocol=protocol)

    def stream_closed(self, *, protocol: Protocol, proxy: Proxy | None) -> None:
        """Note that a proxy left, with its last stream."""
        self._inner.stream_closed(protocol=protocol, proxy=proxy)
        if proxy is None or id(proxy) not in self._seen:
            return
        self._seen.discard(id(proxy))
        self._streams[proxy.id] -= 1
        if self._streams[proxy.id] > 0:
            return
        del self._streams[proxy.id]
        for key in [each for each in self._refused if each[0] == proxy.id]:
            del self._refused[key]
        self._history.proxy("proxy_disconnected", proxy.id, protocol=protocol.value)

    def request(self, *, proxy: Proxy, type_url: str) -> None:
        """Note that a proxy came, with its first stream."""
        self._inner.request(proxy=proxy, type_url=type_url)
        if id(proxy) in self._seen:
            return
        self._seen.add(id(proxy))
        self._streams[proxy.id] += 1
        if self._streams[proxy.id] == 1:
            self._history.proxy(
                "proxy_connected",
                proxy.id,
                cluster=proxy.cluster,
                capability=proxy.capability.value,
            )

    def response_sent(self, *, proxy: Proxy, type_url: str, size_bytes: int) -> None:
        """Pass it on."""
        self._inner.response_sent(proxy=proxy, type_url=type_url, size_bytes=size_bytes)

    def acked(self, *, proxy: Proxy, type_url: str, version: str, lag_s: float) -> None:
        """Note that a proxy takes again what it refused."""
        self._inner.acked(proxy=proxy, type_url=type_url, version=version, lag_s=lag_s)
        if not self._refused:
            return
        found = self._refused.pop((proxy.id, type_url), None)
        if found is not None:
            name = _short(type_url)
            self._history.proxy(
                "xds_nack_cleared",
                proxy.id,
                f"It takes {name} again.",
                type=name,
                version=version,
                refused=found[1],
            )

    def nacked(
        self, *, proxy: Proxy, type_url: str, version: str, error: str, names: frozenset[str]
    ) -> None:
        """Note that a proxy refuses something, once per reason."""
        self._inner.nacked(
            proxy=proxy, type_url=type_url, version=version, error=error, names=names
        )
        said, count = self._refused.get((proxy.id, type_url), ("", 0))
        self._refused[proxy.id, type_url] = (error, count + 1)
        if count and said == error:
            return
        self._history.proxy(
            "xds_nack_received",
            proxy.id,
            error,
            type=_short(type_url),
            version=version,
            resources=sorted(names)[:20],
        )

    def ignored(self, *, proxy: Proxy | None, type_url: str, reason: str) -> None:
        """Pass it on."""
        self._inner.ignored(proxy=proxy, type_url=type_url, reason=reason)

    def refused(self, *, proxy: Proxy | None, peer: str, reason: str) -> None:
        """Pass it on."""
        self._inner.refused(proxy=proxy, peer=peer, reason=reason)


def _short(type_url: str) -> str:
    return type_url.rpartition(".")[2]
