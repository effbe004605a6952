"""The agent's HTTP pages: health, metrics and drains, on loopback unless told otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from sidecar_agent.agent import Agent
from sidecar_agent.metrics import CONTENT_TYPE, Metrics
from sidecar_agent.status import describe, unready


def application(agent: Agent) -> web.Application:
    """Return the admin pages of an agent."""
    metrics = Metrics(agent)

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        reasons = unready(agent, agent.clock())
        body = {"ready": not reasons, "reasons": reasons}
        return web.json_response(body, status=503 if reasons else 200)

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def instances(_request: web.Request) -> web.Response:
        now = agent.clock()
        return web.json_response([describe(agent, one, now) for one in agent.instances.values()])

    async def instance(request: web.Request) -> web.Response:
        return _described(agent, request.match_info["instance"])

    async def drain(request: web.Request) -> web.Response:
        _refuse_foreign(request)
        return _drained(agent, request.match_info["instance"], draining=True)

    async def undrain(request: web.Request) -> web.Response:
        _refuse_foreign(request)
        return _drained(agent, request.match_info["instance"], draining=False)

    app = web.Application(client_max_size=1024)
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", page),
            web.get("/instances", instances),
            web.get("/instances/{instance}", instance),
            web.post("/drain/{instance}", drain),
            web.post("/undrain/{instance}", undrain),
        ]
    )
    return app


def _refuse_foreign(request: web.Request) -> None:
    """Take no order that a browser sends: no page of ours does.

    That the origin is the host that was asked for would prove nothing: a page's own name can be made to lead here
    (DNS rebinding).
    """
    if "Origin" in request.headers:
        raise web.HTTPForbidden(text="a page in a browser may not do this\n")


def _drained(agent: Agent, name: str, *, draining: bool) -> web.Response:
    if name in agent.instances:
        agent.drain(name, draining=draining)
    return _described(agent, name)


def _described(agent: Agent, name: str) -> web.Response:
    found = agent.instances.get(name)
    if found is None:
        known = ", ".join(agent.instances)
        return web.json_response(
            {"error": f"no instance {name!r}; this agent has: {known}"}, status=404
        )
    return web.json_response(describe(agent, found, agent.clock()))


class AddressError(Exception):
    """The admin address cannot be bound; the text says why."""


@asynccontextmanager
async def serving(agent: Agent, address: str) -> AsyncIterator[str]:
    """Serve the pages at host:port and yield the address that was bound (port 0 = any).

    Raises:
        AddressError: the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(application(agent), access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise AddressError(str(error)) from error
        bound = runner.addresses[0]
        yield f"{host}:{bound[1]}"
    finally:
        await runner.cleanup()
