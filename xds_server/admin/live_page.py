"""The live page and its stream: the whole state at connect, then what changed.

Nobody waits for a client: each is compared with the newest state when it has taken what it was sent
before, so that a slow one skips what lies between. While nobody looks, nothing is computed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from xds_server import __version__
from xds_server.admin.live_state import InstanceTexts, Items, LiveState, proxy_texts, written
from xds_server.clock import Clock
from xds_server.core.model import InstanceId
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample
from xds_server.store.row import Row
from xds_server.xds.syncz import ProxyStatus

GAP_S = 0.25
"""A client is sent changes at most this often."""
PROXIES_GAP_S = 0.75
"""Reading how every proxy stands needs the event loop, so it is done less often."""
BEAT_S = 1.0
"""A client hears something at least this often, so that it can tell silence from a lost connection."""
MOST_CLIENTS = 32
MOST_EVENTS = 200
"""The newest events, for who connects; older ones are in the event store."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
MEDIA_TYPES = {
    "html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml",
}  # fmt: skip


def live_facts(policy: Policy, **others: Any) -> dict[str, Any]:
    """Return what the page says above everything else."""
    kv, telemetry = policy.kv, policy.telemetry
    return {
        "unix_s": round(time.time(), 3),
        "version": __version__,
        "stale_s": telemetry.interval_s * telemetry.stale_intervals,
        "high": kv.high,
        "critical": kv.critical,
        **others,
    }


class LivePage:
    """Serves the page, the state and the stream."""

    def __init__(
        self,
        *,
        plan: Callable[[], Plan | None],
        latest: Callable[[], Mapping[InstanceId, Sample]],
        proxies: Callable[[], list[ProxyStatus]],
        facts: Callable[[], Mapping[str, Any]],
        is_over: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Prepare; nothing is read before somebody looks.

        Args:
            plan: What was decided last.
            latest: The newest sample of each instance.
            proxies: How every stream stands.
            facts: What else is to be said with every message; small.
            is_over: Whether streams shall end.
            clock: The control plane's monotonic clock.
        """
        self._plan = plan
        self._latest = latest
        self._proxies = proxies
        self._facts = facts
        self._is_over = is_over
        self._clock = clock
        self._texts = InstanceTexts()
        self._state = LiveState()
        self._read_at = float("-inf")
        self._proxies_at = float("-inf")
        self._lock = asyncio.Lock()
        self._events: deque[tuple[int, str]] = deque(maxlen=MOST_EVENTS)
        self._numbers = itertools.count(1)
        self._clients = 0
        self._files = {
            each.name: each.read_bytes()
            for each in files("xds_server.admin.page").iterdir()
            if each.name.rpartition(".")[2] in MEDIA_TYPES
        }

    def happened(self, row: Row) -> None:
        """Take in an event for those who look, and for those who will."""
        text = json.dumps(row.document(), ensure_ascii=False, default=str)
        self._events.append((next(self._numbers), text))

    def routes(self) -> list[BaseRoute]:
        """Return the routes for the admin server."""
        return [
            Route("/page/{name}", self.file),
            Route("/api/state", self.state),
            Route("/api/stream", self.stream),
        ]

    def index(self) -> Response:
        """Return the page itself."""
        return self._answer("index.html")

    async def file(self, request: Request) -> Response:
        """Answer with a file of the page."""
        name = request.path_params["name"]
        if name not in self._files:
            return JSONResponse({"error": f"the page has no file {name!r}"}, status_code=404)
        return self._answer(name)

    def _answer(self, name: str) -> Response:
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(self._files[name], media_type=media_type, headers=HEADERS)

    async def state(self, _: Request) -> Response:
        """Answer with the whole state once."""
        text = self._message(await self._current(), LiveState(), 0)[0]
        return Response(text + "\n", media_type=JSONResponse.media_type)

    async def stream(self, _: Request) -> Response:
        """Answer with server-sent events: `state` first, then `change`."""
        if self._clients >= MOST_CLIENTS:
            text = f"{MOST_CLIENTS} pages are open already; close one"
            return JSONResponse({"error": text}, status_code=503)
        return StreamingResponse(
            self._events_for_a_client(),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _events_for_a_client(self) -> AsyncIterator[str]:
        self._clients += 1
        try:
            has, number, name, sent_at = LiveState(), 0, "state", float("-inf")
            while not self._is_over():
                state = await self._current()
                now = self._clock()
                newest = self._events[-1][0] if self._events else 0
                if state is not has or newest != number or now - sent_at >= BEAT_S:
                    text, number = self._message(state, has, number)
                    has, sent_at = state, now
                    yield f"event: {name}\ndata: {text}\n\n"
                    name = "change"
                await asyncio.sleep(GAP_S)
        finally:
            self._clients -= 1

    def _message(self, state: LiveState, has: LiveState, number: int) -> tuple[str, int]:
        """Return the JSON of what changed, and the number of the newest event in it."""
        facts = {"now_s": round(self._clock(), 3), **self._facts()}
        members = [f'"facts":{json.dumps(facts)}', *written(state.changes_since(has))]
        events = [text for each, text in self._events if each > number]
        if events:
            members.append(f'"events":[{",".join(events)}]')
            number = self._events[-1][0]
        return "{" + ",".join(members) + "}", number

    async def _current(self) -> LiveState:
        """Return the newest state; clients that ask together share one reading."""
        async with self._lock:
            now = self._clock()
            if now - self._read_at < GAP_S / 2:
                return self._state
            statuses = None
            if now - self._proxies_at >= PROXIES_GAP_S:
                self._proxies_at = now
                statuses = self._proxies()
            plan, latest = self._plan(), dict(self._latest())
            state = await asyncio.to_thread(self._read, plan, latest, statuses, now)
            self._read_at = now
            if state != self._state:
                self._state = state
            return self._state

    def _read(
        self,
        plan: Plan | None,
        latest: Mapping[InstanceId, Sample],
        statuses: list[ProxyStatus] | None,
        now: float,
    ) -> LiveState:
        models, instances = self._texts.of(plan, latest)
        proxies: Items = self._state.proxies
        if statuses is not None:
            proxies = proxy_texts(statuses, now)
        return LiveState(models=models, instances=instances, proxies=proxies)
