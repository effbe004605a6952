"""Fetches an engine's pages: deadline, reused connections, size limit, configured hosts only."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from yarl import URL

from sidecar_agent.engine.adapters import ADAPTERS, AUTO, Adapter, Options, Texts, detect
from sidecar_agent.engine.body import whole
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import believable
from sidecar_agent.engine.outcome import Outcome, OutcomeKind

MAX_PAGE_BYTES: Final = 4 * 2**20
"""The largest page seen is 80 KB; this only keeps nonsense out of memory."""
_NIM_PATH: Final = "/v1/metrics"
_NO_ROUTE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
_ABSENT: Final = frozenset({404, 405, 501})
"""The engine does not offer this page (llama.cpp says 501 when a page is switched off)."""


def session() -> aiohttp.ClientSession:
    """Return the session all probes share; the caller closes it.

    No proxies from the environment, no cookies, no decompression (a small body may unpack to a huge
    one), connections kept for as long as engines keep them. Deadlines are the probes' own.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(_connected)
    tracing.on_connection_reuseconn.append(_connected)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[tracing],
    )


async def _connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    """Note that a request has a connection: only then its silence is the engine's."""
    context.trace_request_ctx.is_connected = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where an engine's pages are."""

    url: str
    """Base URL (http://host:port), or the full URL of the metrics page."""
    engine: str = AUTO
    deadline_s: float = 1.0
    options: Options = field(default_factory=Options)


class _Failed(Exception):  # noqa: N818 - a control-flow carrier, not an error anyone sees
    def __init__(self, kind: OutcomeKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Probe:
    """Scrapes one engine. One scrape at a time; never raises for what the engine does."""

    def __init__(
        self, target: Target, http: aiohttp.ClientSession, *, clock: Callable[[], float]
    ) -> None:
        self._target = target
        self._http = http
        self._clock = clock
        self._url = URL(target.url)
        self._explicit = self._url.path not in {"", "/"}
        self._adapter: Adapter | None = ADAPTERS.get(target.engine)
        self._path: str | None = None
        self._answered_at = 0.0
        self.is_connected = False
        """Whether the scrape had a connection."""

    async def scrape(self) -> Outcome:
        """Fetch and read the engine's pages within the deadline."""
        started = self._clock()
        self.is_connected = False
        try:
            async with asyncio.timeout(self._target.deadline_s):
                adapter, texts, at = await self._pages()
        except TimeoutError:
            kind = OutcomeKind.SILENT if self.is_connected else OutcomeKind.UNREACHABLE
            lacks = "answer" if self.is_connected else "connection"
            return self._failure(kind, f"no {lacks} in {self._target.deadline_s:g} s", started)
        except _Failed as failed:
            return self._failure(failed.kind, failed.detail, started)
        if adapter is None:
            facts = EngineFacts(
                state=EngineState.UNKNOWN,
                detail="the page has no known engine's numbers (still loading, or metrics are off)",
            )
        else:
            facts = believable(adapter.read(texts, self._target.options))
            if facts.state is EngineState.UNKNOWN and self._target.engine == AUTO:
                self._adapter = self._path = None  # another engine may serve here now
        return Outcome(
            kind=OutcomeKind.PAGE,
            at=at,
            took_s=self._clock() - started,
            page_bytes=len(texts.metrics or "") + len(texts.slots or ""),
            facts=facts,
            engine=adapter.kind if adapter else "",
        )

    async def _pages(self) -> tuple[Adapter | None, Texts, float]:
        adapter = self._adapter
        page = await self._metrics(adapter)
        at = self._answered_at
        if adapter is None:
            adapter = detect(page or "")
            self._adapter = adapter
        slots = None
        if adapter is not None and adapter.slots_path is not None:
            slots = await self._get(self._url.with_path(adapter.slots_path))
        if page is None and slots is None:
            raise _Failed(OutcomeKind.BAD_PAGE, f"no metrics page at {self._target.url}")
        return adapter, Texts(metrics=page, slots=slots), at

    async def _metrics(self, adapter: Adapter | None) -> str | None:
        if self._explicit:
            return await self._get(self._url)
        if self._path is not None:
            return await self._get(self._url.with_path(self._path))
        paths = ("/metrics", _NIM_PATH) if adapter is None else (adapter.path,)
        if adapter is not None and adapter.path == _NIM_PATH:
            paths = (_NIM_PATH, "/metrics")  # NIM before 24.08
        for path in paths:
            page = await self._get(self._url.with_path(path))
            if page is not None:
                self._path = path
                return page
        return None

    async def _get(self, url: URL) -> str | None:
        """Return the body, or None where the engine does not offer this page."""
        keep = self._adapter is None or self._adapter.keep_alive
        try:
            async with self._http.get(
                url.with_query(self._url.query),
                allow_redirects=False,
                headers=None if keep else {"Connection": "close"},
                trace_request_ctx=self,
            ) as response:
                self._answered_at = self._clock()
                body = await whole(response, limit=MAX_PAGE_BYTES)
        except aiohttp.ClientConnectorDNSError as error:
            raise _Failed(OutcomeKind.UNREACHABLE, f"cannot resolve {url.host}") from error
        except aiohttp.ClientSSLError as error:
            # The engine listens; it is the agent that cannot read it: no word about its health.
            raise _Failed(OutcomeKind.BAD_PAGE, f"TLS failed: {error}"[:200]) from error
        except aiohttp.ClientConnectorError as error:
            if error.errno in _NO_ROUTE:
                raise _Failed(OutcomeKind.UNREACHABLE, "no route to host") from error
            raise _Failed(OutcomeKind.REFUSED, "connection refused") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            # aiohttp has already tried once more on a fresh connection if a kept one was dead.
            raise _Failed(OutcomeKind.REFUSED, "connection reset") from error
        except aiohttp.ClientError as error:
            raise _Failed(OutcomeKind.BAD_PAGE, f"not HTTP: {error}"[:200]) from error
        if body is None:
            raise _Failed(OutcomeKind.BAD_PAGE, f"the page is larger than {MAX_PAGE_BYTES} bytes")
        if response.status == 200:
            return body.decode("utf-8", "replace")
        if response.status in _ABSENT:
            return None
        if response.status == 503 and b"oading" in body:
            raise _Failed(OutcomeKind.LOADING, "the engine says it is loading")
        what = "redirects are not followed" if 300 <= response.status < 400 else "not a page"
        raise _Failed(OutcomeKind.BAD_PAGE, f"status {response.status} from {url.path}: {what}")

    def _failure(self, kind: OutcomeKind, detail: str, started: float) -> Outcome:
        now = self._clock()
        return Outcome(kind=kind, at=now, took_s=now - started, detail=detail)
