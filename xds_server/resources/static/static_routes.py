"""Which answer a request gets in a static tier: its route table.

Each template, and at last the answer itself, has the same routes under its own conditions: chat before text, the
body's `stream` before the Accept header. What is neither chat nor text gets an error: no document that was
written for a person can be read by a client that asked for embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from xds_server.core.model import StaticAnswer, StaticTemplate
from xds_server.resources import headers
from xds_server.resources.bodies.path_kind import ENDINGS, path_pattern
from xds_server.resources.bodies.request_facts import Fact, fact_is
from xds_server.resources.errors import error_object
from xds_server.resources.proto import typed
from xds_server.resources.static.answer import Dialect, streamed, whole
from xds_server.resources.static.static_conditions import conditions

JSON = "application/json"
EVENTS = "text/event-stream"
DEFAULT = "default"
"""`x-static-template` of the answer itself."""
UNAVAILABLE = "unavailable"
"""`x-static-template` of the error on other paths."""
RETRY_AFTER_S = 5
"""When a client of another path may come back, where the answer does not say: as long as Envoy's first ejection."""


def author_routes(answer: StaticAnswer, served: str) -> list[Any]:
    """Return the routes of an answer with its templates; the first match wins."""
    routes: list[Any] = []
    rest = StaticTemplate(name=DEFAULT, answer=answer)
    for template in (*answer.templates, rest):
        fits = conditions(template)
        for dialect in ENDINGS:
            routes += _spoken(template, dialect, fits, served)
    return [*routes, _unavailable(answer)]


def answer_headers(
    answer: StaticAnswer, content_type: str, *, template: str = DEFAULT
) -> list[Any]:
    """Return the headers that belong to an answer."""
    result = [
        headers.add("content-type", content_type),
        headers.add(headers.STATIC_TEMPLATE, headers.literal(template)),
    ]
    if answer.retry_after_s is not None:
        result.append(headers.add("retry-after", str(answer.retry_after_s)))
    return result


def _spoken(
    template: StaticTemplate, dialect: Dialect, fits: dict[str, list[Any]], served: str
) -> Iterator[Any]:
    """Yield the routes of one template in one dialect: plain, and streamed where it is no error."""
    answer = template.answer
    document = whole(answer.body, dialect=dialect, model=served)
    cases: list[tuple[dict[str, list[Any]], str, str]] = [({}, document, JSON)]
    if 200 <= answer.status < 300:  # an error is no stream: its readers expect JSON
        events = streamed(answer.body, dialect=dialect, model=served)
        cases = [
            ({"dynamic_metadata": [fact_is(Fact.STREAM, True)]}, events, EVENTS),
            ({"dynamic_metadata": [fact_is(Fact.STREAM, False)]}, document, JSON),
            ({"headers": [_has("accept", EVENTS)]}, events, EVENTS),
            *cases,
        ]
    for condition, text, content_type in cases:
        both = {key: [*fits[key], *condition.get(key, ())] for key in fits}
        match = {"safe_regex": _regex(path_pattern(dialect)), **both}
        added = answer_headers(answer, content_type, template=template.name)
        yield _route(match, answer.status, text, added)


def unavailable(answer: StaticAnswer) -> StaticAnswer:
    """Return what other paths get, beside an answer for completions."""
    error = error_object(
        "No engine can take this request now, and its path has no static answer.",
        kind="server_error",
        code="unavailable",
    )
    again = RETRY_AFTER_S if answer.retry_after_s is None else answer.retry_after_s
    return StaticAnswer(status=503, body=error, retry_after_s=again)


def _unavailable(answer: StaticAnswer) -> Any:
    error = unavailable(answer)
    added = answer_headers(error, JSON, template=UNAVAILABLE)
    return _route({"prefix": "/"}, error.status, json.dumps(error.body), added)


def _route(match: dict[str, Any], status: int, text: str, added: list[Any]) -> Any:
    return typed.route.Route(
        match=typed.route.RouteMatch(**match),
        direct_response=typed.route.DirectResponseAction(
            status=status, body=typed.core.DataSource(inline_string=text)
        ),
        response_headers_to_add=added,
    )


def _regex(pattern: str) -> Any:
    return typed.matcher.RegexMatcher(regex=pattern)


def _has(name: str, part: str) -> Any:
    match = typed.matcher.StringMatcher(contains=part)
    return typed.route.HeaderMatcher(name=name, string_match=match)
