"""The admin server's pages about the past: events, one event, an incident."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from xds_server.core.model import Topology
from xds_server.core.nearest import shown, there_is
from xds_server.store.incident import export
from xds_server.store.moments import parse_moment, parse_span
from xds_server.store.row import Kind, Query, Row
from xds_server.store.store import EventStore, StoreError

MOST_ROWS = 5000
USUAL_ROWS = 200
USUAL_AROUND_S = 300.0
MOST_AROUND_S = 7 * 86400.0
_PARAMETERS = (
    "model", "tier", "instance", "proxy", "name", "kind", "since", "until", "after", "limit",
)  # fmt: skip


class AskedWronglyError(Exception):
    """A parameter cannot be used; the text is one sentence."""


class HistoryPages:
    """Answers from the event store; every read is in a thread."""

    def __init__(self, store: EventStore, topology: Callable[[], Topology]) -> None:
        self._store = store
        self._topology = topology

    def routes(self) -> list[BaseRoute]:
        """Return the routes for the admin server."""
        return [
            Route("/api/events", self.events),
            Route("/api/events/{id:int}", self.event),
            Route("/api/incident", self.incident),
        ]

    async def events(self, request: Request) -> Response:
        """Answer with the events asked for, the oldest first."""
        try:
            query = parse_query(dict(request.query_params), time.time())
            # One more than asked for tells whether there are more.
            more = dataclasses.replace(query, limit=query.limit + 1)
            rows = await asyncio.to_thread(self._store.read, more)
            if not rows:
                await asyncio.to_thread(self._require_known, query)
        except AskedWronglyError as error:
            return _error(400, str(error))
        except LookupError as error:
            return _error(404, str(error.args[0]))
        except StoreError as error:
            return _error(503, str(error))
        has_more = len(rows) > query.limit
        if has_more:
            rows = rows[: query.limit] if query.oldest_first else rows[-query.limit :]
        return await asyncio.to_thread(
            _json,
            {
                "now_unix_s": time.time(),
                "events": [row.document() for row in rows],
                "has_more": has_more,
                "trouble": self._store.trouble,
            },
        )

    async def event(self, request: Request) -> Response:
        """Answer with one event."""
        number = request.path_params["id"]
        try:
            row = await self._one(number)
        except LookupError as error:
            return _error(404, str(error.args[0]))
        except StoreError as error:
            return _error(503, str(error))
        return _json(row.document())

    async def incident(self, request: Request) -> Response:
        """Answer with what there is to say about an event or a time."""
        given = request.query_params
        try:
            around_s = _around(given.get("around"))
            event: Row | None = None
            if ("id" in given) == ("at" in given):
                raise AskedWronglyError("give either id, the number of an event, or at, a time")
            if "id" in given:
                event = await self._one(_whole("id", given["id"]))
                at = event.at_unix_s
            else:
                at = _moment("at", given["at"], time.time())
            found = await asyncio.to_thread(
                export, self._store.read, at_unix_s=at, around_s=around_s, event=event
            )
        except AskedWronglyError as error:
            return _error(400, str(error))
        except LookupError as error:
            return _error(404, str(error.args[0]))
        except StoreError as error:
            return _error(503, str(error))
        if not found["timeline"] and not found["weights"]:
            return _error(404, "nothing happened in that time, or it is no longer kept")
        return await asyncio.to_thread(_json, found)

    async def _one(self, number: int) -> Row:
        row = None
        if 0 < number < 2**63:
            row = await asyncio.to_thread(self._store.read_one, number)
        if row is None:
            raise LookupError(f"there is no event {number} (or it is no longer kept)")
        return row

    def _require_known(self, query: Query) -> None:
        """Tell a filter that nothing happened for from one that names nothing.

        Raises:
            LookupError: Neither the fleet nor the history knows the name.
        """
        topology = self._topology()
        known: dict[str, set[str]] = {
            "model": {model.name for model in topology.models},
            "tier": {tier.name for model in topology.models for tier in model.tiers},
            "instance": {each.id for _, _, each in topology.instances()},
        }
        for key, names in known.items():
            value = getattr(query, key)
            if value and value not in names and not self._store.knows(key, value):
                known_now = there_is(value, sorted(names))
                raise LookupError(
                    f"there is no {key} {shown(value)}, now or in the history; {known_now}"
                )


def parse_query(given: Mapping[str, str], now_unix_s: float) -> Query:
    """Make a query of URL parameters.

    Raises:
        AskedWronglyError: One of them is unknown or cannot be used.
    """
    unknown = sorted(set(given) - set(_PARAMETERS))
    if unknown:
        raise AskedWronglyError(
            f"{unknown[0]!r} is no parameter; these are: {', '.join(_PARAMETERS)}"
        )
    limit = _whole("limit", given.get("limit", str(USUAL_ROWS)))
    if not 1 <= limit <= MOST_ROWS:
        raise AskedWronglyError(f"limit: {limit}: expected 1 to {MOST_ROWS}")
    after = _whole("after", given["after"]) if "after" in given else None
    since = _optional_moment("since", given.get("since"), now_unix_s)
    until = _optional_moment("until", given.get("until"), now_unix_s)
    if since is not None and until is not None and since > until:
        raise AskedWronglyError(
            f"until: {given['until']!r}: expected a time that is not before since"
        )
    return Query(
        **{key: given.get(key, "") for key in ("model", "tier", "instance", "proxy", "name")},
        kinds=_kinds(given.get("kind", "")),
        since_unix_s=since,
        until_unix_s=until,
        after=after,
        limit=limit,
        # Who follows wants every row that is new; who looks wants the newest.
        oldest_first=after is not None,
    )


def _kinds(text: str) -> tuple[Kind, ...]:
    kinds = []
    for word in filter(None, text.split(",")):
        try:
            kinds.append(Kind(word))
        except ValueError:
            known = ", ".join(each.value for each in Kind)
            raise AskedWronglyError(f"kind: {word!r}: expected some of {known}") from None
    return tuple(kinds)


def _optional_moment(name: str, text: str | None, now: float) -> float | None:
    return None if text is None else _moment(name, text, now)


def _moment(name: str, text: str, now: float) -> float:
    try:
        return parse_moment(text, now)
    except ValueError as error:
        raise AskedWronglyError(f"{name}: {error}") from error


def _around(text: str | None) -> float:
    if text is None:
        return USUAL_AROUND_S
    try:
        seconds = parse_span(text)
    except ValueError as error:
        raise AskedWronglyError(f"around: {error}") from error
    if not 0 < seconds <= MOST_AROUND_S:
        raise AskedWronglyError(f"around: {text!r}: expected more than nothing and at most 7d")
    return seconds


def _whole(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise AskedWronglyError(f"{name}: {text!r}: expected a whole number")


def _error(status: int, text: str) -> Response:
    return _json({"error": text}, status=status)


def _json(value: Any, *, status: int = 200) -> Response:
    body = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return Response(body + "\n", status_code=status, media_type=JSONResponse.media_type)
