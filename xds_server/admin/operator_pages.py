"""What people on call ask and order over the admin HTTP: the fleet at a glance, tiers that get everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from xds_server.admin import consequences, prospect
from xds_server.admin.access import who_orders
from xds_server.admin.overview import describe
from xds_server.admin.server import is_foreign
from xds_server.clock import Clock
from xds_server.config.config import Config
from xds_server.config.load import MAX_BYTES, load_text
from xds_server.config.problems import ConfigError
from xds_server.core.inputs import Force
from xds_server.core.model import Model, ModelName, Tier, Topology
from xds_server.core.nearest import nearest, shown, there_is
from xds_server.core.plan import FORCED, Plan
from xds_server.loop.control_loop import ControlLoop
from xds_server.observability.history import History
from xds_server.registered import Registered
from xds_server.store.moments import parse_span, show_moment
from xds_server.xds.syncz import ProxyStatus

LEAST_S = 1.0
MOST_S = 86400.0
"""Nobody remembers an order for longer than a day: give it again."""
MOST_WHO = 100
MOST_WHY = 200


class _OrderError(Exception):
    """An order that cannot be followed; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OperatorPages:
    """Shows and forwards. What is ordered is noted in the history before it is done."""

    def __init__(
        self,
        *,
        loop: ControlLoop,
        history: History,
        clock: Clock,
        config: Callable[[], Config],
        registered: Callable[[], Iterable[Registered]],
        facts: Callable[[], Mapping[str, Any]],
        proxies: Callable[[], list[ProxyStatus]],
    ) -> None:
        self._loop = loop
        self._history = history
        self._clock = clock
        self._config = config
        self._registered = registered
        self._facts = facts
        self._proxies = proxies

    def routes(self) -> list[BaseRoute]:
        """Return the pages."""
        return [
            Route("/api/status", self._status),
            Route("/api/diff", self._diff, methods=["POST"]),
            Route("/force", self._force, methods=["POST"]),
            Route("/unforce", self._unforce, methods=["POST"]),
        ]

    async def _status(self, _: Request) -> Response:
        loop, now = self._loop, self._clock()
        plan, latest, is_warm = loop.fleet.plan, dict(loop.latest), loop.is_warm
        facts, proxies = self._facts(), self._proxies()
        return await asyncio.to_thread(
            lambda: JSONResponse(
                describe(plan, latest, facts=facts, proxies=proxies, is_warm=is_warm, now=now)
            )
        )

    async def _diff(self, request: Request) -> Response:
        if is_foreign(request):
            return _error(403, "a page of another site may not do this")
        body = b""
        async for chunk in request.stream():
            # Read to its end all the same: who is cut off while sending never sees the answer.
            body = (body + chunk)[: MAX_BYTES + 1]
        if len(body) > MAX_BYTES:
            return _error(400, f"the configuration is too long: at most {MAX_BYTES} bytes")
        try:
            other = load_text(body.decode(), source="CONFIG")
        except UnicodeDecodeError:
            return _error(400, "the configuration is not UTF-8")
        except ConfigError as error:
            return _error(400, str(error))
        fleet, config, now = self._loop.fleet, self._config(), self._clock()
        registered = list(self._registered())
        sides = prospect.copied(fleet, config, now)
        found = await asyncio.to_thread(
            lambda: prospect.compare(*prospect.applied(sides, other, registered))
        )
        return JSONResponse(found)

    async def _force(self, request: Request) -> Response:
        return self._ordered(request, is_end=False)

    async def _unforce(self, request: Request) -> Response:
        return self._ordered(request, is_end=True)

    def _ordered(self, request: Request, *, is_end: bool) -> Response:
        if is_foreign(request):
            return _error(403, "a page of another site may not do this")
        given = dict(request.query_params)
        given["who"] = who_orders(request, given.get("who", ""))
        try:
            order, answer = self._end(given) if is_end else self._begin(given)
        except _OrderError as error:
            return _error(error.status, str(error))
        data = {} if is_end else {"until": answer["until"]}
        self._history.ordered(
            "unforce_requested" if is_end else "force_requested",
            who=order.who,
            why=order.why,
            model=order.model,
            tier=answer["tier"],
            **data,
        )
        self._loop.force_tier(order)
        return JSONResponse(answer, status_code=202)

    def _begin(self, given: Mapping[str, str]) -> tuple[Force, dict[str, Any]]:
        model, tier = _tier(self._loop.fleet.topology, given.get("tier", ""))
        why = given.get("why", "").strip()
        if not why:
            raise _OrderError(400, "why is missing: who comes next must know")
        try:
            span_s = parse_span(given.get("for", ""))
        except ValueError as error:
            raise _OrderError(400, f"for: {error}") from error
        if not LEAST_S <= span_s <= MOST_S:
            raise _OrderError(400, f"for: {given['for']!r}: expected from 1s to 24h")
        if not _can_serve(self._loop.fleet.plan, model, tier):
            raise _OrderError(409, f"{model.name}/{tier.name} can take no request now")
        until_unix_s = time.time() + span_s
        order = Force(
            model=model.name,
            tier=tier.name,
            who=_who(given),
            why=why[:MOST_WHY],
            until=self._clock() + span_s,
            until_unix_s=until_unix_s,
        )
        answer = {
            "model": model.name,
            "tier": tier.name,
            "until": show_moment(until_unix_s),
            "note": consequences.of_force(self._loop.fleet.plan, model.name),
        }
        return order, answer

    def _end(self, given: Mapping[str, str]) -> tuple[Force, dict[str, Any]]:
        model, tier = self._forced(given.get("model", ""))
        why = given.get("why", "").strip()[:MOST_WHY]
        order = Force(model=model, tier=None, who=_who(given), why=why)
        return order, {"model": model, "tier": tier, "note": ""}

    def _forced(self, asked: str) -> tuple[ModelName, str]:
        """Return the model whose order is to end, and its tier."""
        plan = self._loop.fleet.plan
        forced: dict[ModelName, str] = {}
        for model in () if plan is None else plan.models:
            reason = model.tiers[0].reason
            if reason.rule == FORCED:
                forced[model.name] = str(reason.inputs["tier"])
        for name, tier in forced.items():
            if asked in {name, f"{name}/{tier}"}:
                return name, tier
        if asked and any(each.name == asked for each in self._loop.fleet.topology.models):
            raise _OrderError(409, f"no tier of {asked!r} is forced")
        there = ", ".join(f"{name} (to {tier})" for name, tier in forced.items()) or "none"
        if asked:
            names = [str(each.name) for each in self._loop.fleet.topology.models]
            known = there_is(asked, names)
            raise _OrderError(404, f"there is no model {shown(asked)}; {known}")
        if not forced:
            raise _OrderError(409, "no tier is forced: there is nothing to end")
        if len(forced) != 1:
            raise _OrderError(409, f"forced is {there}: say which model")
        return forced.popitem()


def _who(given: Mapping[str, str]) -> str:
    return given.get("who", "").strip()[:MOST_WHO] or "admin"


def _tier(topology: Topology, asked: str) -> tuple[Model, Tier]:
    """Return the tier that `MODEL/TIER` or `TIER` means."""
    if not asked:
        raise _OrderError(400, "tier is missing: MODEL/TIER, or TIER where one model has it")
    every = [(model, tier) for model in topology.models for tier in model.tiers]
    found = [(m, t) for m, t in every if f"{m.name}/{t.name}" == asked]
    found = found or [(m, t) for m, t in every if t.name == asked]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{model.name}/{tier.name}" for model, tier in found)
        raise _OrderError(400, f"tier: {asked!r}: several models have it: {names}")
    known = [f"{model.name}/{tier.name}" for model, tier in every]
    bare = () if "/" in asked else [str(tier.name) for _, tier in every]
    clause = there_is(asked, bare if nearest(asked, bare) else known)
    raise _OrderError(404, f"there is no tier {shown(asked)}; {clause}")


def _can_serve(plan: Plan | None, model: Model, tier: Tier) -> bool:
    if tier.is_static:
        return True
    return any(
        instance.ceiling > 0.0
        for planned in (() if plan is None else plan.models)
        if planned.name == model.name
        for each in planned.tiers
        if each.name == tier.name
        for instance in each.instances
    )


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)
