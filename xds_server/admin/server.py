"""The admin HTTP server: health, metrics, what was decided and why, drains.

It only shows and forwards: everything comes through the `Inside` that it is given. `xds_server.admin.access`
decides who may look and who may order; orders from web pages of other sites are refused, whoever asks. Large
pages are written in a thread, so that looking does not delay deciding.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from xds_server.admin.access import Access, Guarded, who_orders
from xds_server.admin.consequences import last_of
from xds_server.config.tls import Tls
from xds_server.core.explain import explain
from xds_server.core.model import InstanceId
from xds_server.core.nearest import shown, there_is
from xds_server.core.plan import Plan
from xds_server.observability.metrics import Scrape
from xds_server.resources.capability import Capability
from xds_server.resources.render import render
from xds_server.resources.snapshot import Snapshot


class UnknownInstanceError(LookupError):
    """There is no instance of that name."""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What the admin server may look at and do."""

    plan: Callable[[], Plan | None]
    fleet: Callable[[], Mapping[str, Any]]
    snapshots: Callable[[], Mapping[Capability, Snapshot]]
    proxies: Callable[[], list[Any]]
    metrics: Callable[[], Scrape]
    not_ready: Callable[[], str | None]
    """Why proxies are not answered yet; None when they are."""
    drain: Callable[[str, bool, str, str], str]
    """Instance, draining, who, why; returns what else is to be said, raises `UnknownInstanceError`."""
    evidence: Callable[[], Mapping[str, Any]]
    """What proxies saw of requests."""
    note: Callable[[str], str] = lambda _: ""
    """What else is to be said of an instance; empty = nothing."""
    page: Callable[[], Response] | None = None
    """What browsers get at `/`; None = what everybody gets, the list of paths."""
    routes: Sequence[BaseRoute] = ()
    """Pages of other parts."""
    access: Access = field(default_factory=Access)
    """Who may look and order; everybody if nothing is said."""


def make_app(inside: Inside) -> Guarded:
    """Return the ASGI application."""
    pages = _Pages(inside)
    routes: list[BaseRoute] = [
        Route("/", pages.index),
        Route("/healthz", pages.healthz),
        Route("/readyz", pages.readyz),
        Route("/metrics", pages.metrics),
        Route("/debug/fleet", pages.fleet),
        Route("/debug/plan", pages.plan),
        Route("/debug/snapshot", pages.snapshot),
        Route("/debug/syncz", pages.syncz),
        Route("/debug/explain", pages.explain),
        Route("/debug/evidence", pages.evidence),
        Route("/drain/{instance:path}", pages.drain, methods=["POST"]),
        Route("/undrain/{instance:path}", pages.undrain, methods=["POST"]),
        *inside.access.routes(),
        *inside.routes,
    ]
    pages.paths = [route.path for route in routes if isinstance(route, Route)]
    return Guarded(Starlette(routes=routes), inside.access)


class _Pages:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self.paths: list[str] = []

    async def index(self, request: Request) -> Response:
        page = self._inside.page
        if page is not None and "text/html" in request.headers.get("accept", ""):
            return page()
        return PlainTextResponse("\n".join(self.paths) + "\n")

    async def healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        reason = self._inside.not_ready()
        if reason is None:
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"not ready: {reason}\n", status_code=503)

    async def metrics(self, _: Request) -> Response:
        text = await asyncio.to_thread(self._inside.metrics().text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def fleet(self, _: Request) -> Response:
        return await asyncio.to_thread(_json, self._inside.fleet())

    async def plan(self, _: Request) -> Response:
        plan = self._inside.plan()
        if plan is None:
            return _error(503, "there is no plan yet")
        return await asyncio.to_thread(_json, plan)

    async def snapshot(self, request: Request) -> Response:
        snapshots = self._inside.snapshots()
        asked = request.query_params.get("capability")
        if asked is None:
            return await asyncio.to_thread(_rendered, dict(snapshots))
        known = ", ".join(each.value for each in Capability)
        if asked not in set(Capability):
            return _error(404, f"capability {asked!r} is not one of {known}")
        found = snapshots.get(Capability(asked))
        if found is None:
            return _error(404, f"nothing is published for {asked}: no such proxy ever connected")
        return await asyncio.to_thread(lambda: _json(render(found)))

    async def syncz(self, _: Request) -> Response:
        return await asyncio.to_thread(_json, self._inside.proxies())

    async def explain(self, request: Request) -> Response:
        subject = request.query_params.get("subject")
        plan = self._inside.plan()
        if not subject:
            return _error(400, "subject is missing: ?subject=INSTANCE, MODEL/TIER or MODEL")
        if plan is None:
            return _error(503, "there is no plan yet")
        try:
            answer = explain(plan, subject)
        except LookupError as error:
            return _error(404, str(error.args[0]) if error.args else f"unknown subject {subject!r}")
        if answer["kind"] == "instance":
            if note := self._inside.note(subject):
                answer["note"] = note
            if warning := last_of(plan, InstanceId(subject)):
                answer["if_drained"] = warning
        return _json(answer)

    async def evidence(self, _: Request) -> Response:
        return await asyncio.to_thread(_json, self._inside.evidence())

    async def drain(self, request: Request) -> Response:
        return self._drain(request, draining=True)

    async def undrain(self, request: Request) -> Response:
        return self._drain(request, draining=False)

    def _drain(self, request: Request, *, draining: bool) -> Response:
        if is_foreign(request):
            return _error(403, "a page of another site may not do this")
        name = request.path_params["instance"]
        who = who_orders(request, request.query_params.get("who", "admin"))
        why = request.query_params.get("why", "")
        try:
            note = self._inside.drain(name, draining, who[:100], why[:200])
        except UnknownInstanceError:
            plan = self._inside.plan()
            names = (
                i.id for m in (plan.models if plan else ()) for t in m.tiers for i in t.instances
            )
            return _error(404, f"there is no instance {shown(name)}; {there_is(name, names)}")
        return _json({"instance": name, "draining": draining, "note": note}, status=202)


def is_foreign(request: Request) -> bool:
    """Whether a browser sends it for a page of another site."""
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def _rendered(snapshots: Mapping[Capability, Snapshot]) -> Response:
    return _json({each.value: render(found) for each, found in snapshots.items()})


def _error(status: int, text: str) -> Response:
    return _json({"error": text}, status=status)


def _json(value: Any, *, status: int = 200) -> Response:
    body = json.dumps(value, default=_plain, indent=1, ensure_ascii=False)
    return Response(body + "\n", status_code=status, media_type=JSONResponse.media_type)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


class AdminServer(uvicorn.Server):
    """Uvicorn on a socket that is bound already; signals are left to the process."""

    def __init__(self, inside: Inside, tls: Tls | None = None) -> None:
        config = uvicorn.Config(
            make_app(inside),
            ssl_certfile=None if tls is None else tls.cert,
            ssl_keyfile=None if tls is None else tls.key,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handlers alone."""
        yield

    async def serve_on(self, listening: socket.socket) -> None:
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[listening])
