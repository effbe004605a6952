"""The static tier: an internal listener that answers by itself, in JSON or as a stream.

A cluster points at it, so that it can be the last member of a chain and take a weight like any tier.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from xds_server.core.model import Model, StaticAnswer, Tier
from xds_server.resources.bodies.request_facts import Fact, Reading, facts_filters
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES
from xds_server.resources.local_replies import local_replies
from xds_server.resources.names import static_listener_name
from xds_server.resources.proto import Listener, pack, serialize, typed
from xds_server.resources.snapshot import Resource
from xds_server.resources.static.static_conditions import condition_filters
from xds_server.resources.static.static_routes import author_routes

_STREAM = Reading(fact=Fact.STREAM, missing="untold", error="untold", any_content_type=True)
"""Always leaves a mark: with it, Envoy looks for a route again, and sees what the filters before found out. Nobody
behind this filter looks at the content type, so it does not either."""
BODY_LIMIT_BYTES = 4096
"""Envoy's default limit of a direct response's body; raised for longer answers."""


def static_listener(model: Model, tier: Tier) -> Resource:
    """Return the listener of a static tier; models with equal answers share the work."""
    answer = _answer(model, tier)
    shape = _shape(_Said(text=_text(answer), answer=answer), served_name(tier))
    listener = Listener.FromString(shape)
    listener.name = static_listener_name(model.name)
    return Resource.of(listener.name, serialize(listener))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """An answer with its templates, compared by its text."""

    text: str
    answer: StaticAnswer = field(compare=False)


def _text(answer: StaticAnswer) -> str:
    templates = [
        [each.name, _text(each.answer), each.keywords, each.classes, each.languages]
        for each in answer.templates
    ]
    return json.dumps([answer.body, answer.status, answer.retry_after_s, templates])


@lru_cache(maxsize=256)
def _shape(said: _Said, served: str) -> bytes:
    return bytes(_author("", said.answer, served))


def author_static_listener(model: Model, tier: Tier) -> Any:
    """Author the internal listener that answers for a static tier."""
    name = static_listener_name(model.name)
    return _author(name, _answer(model, tier), served_name(tier))


def served_name(tier: Tier) -> str:
    """Return what `x-served-model` and the answer call a tier."""
    return tier.serves or tier.name


def filter_chains(manager: Any) -> list[Any]:
    """Return the filter chains of a listener that only speaks HTTP."""
    network_filter = typed.listener.Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=pack(manager)
    )
    return [typed.listener.FilterChain(filters=[network_filter])]


def router(upstream_log: Sequence[Any] = ()) -> Any:
    """Return the filter that ends every filter chain; `upstream_log` hears of each attempt."""
    return _http_filter("router", typed.router.Router(upstream_log=list(upstream_log)))


def _http_filter(name: str, config: Any) -> Any:
    return typed.hcm.HttpFilter(name=f"envoy.filters.http.{name}", typed_config=pack(config))


def _answer(model: Model, tier: Tier) -> StaticAnswer:
    if tier.answer is None:
        raise ValueError(f"tier {model.name}/{tier.name} has no answer")
    return tier.answer


def _author(name: str, answer: StaticAnswer, served: str) -> Any:
    """Author the listener.

    The `buffer` filter reads each request to its end first: an answer before that makes Envoy close
    the connection. Only here is the body parsed, so other requests never pay for it.
    """
    routes = author_routes(answer, served)
    longest = max(len(each.direct_response.body.inline_string.encode()) for each in routes)
    config = typed.route.RouteConfiguration(
        name="static",
        virtual_hosts=[typed.route.VirtualHost(name="static", domains=["*"], routes=routes)],
        max_direct_response_body_size_bytes=max(BODY_LIMIT_BYTES, longest),
    )
    manager = typed.hcm.HttpConnectionManager(
        stat_prefix="static",
        route_config=config,
        http_filters=[
            _http_filter("buffer", typed.buffer.Buffer(max_request_bytes=BUFFER_LIMIT_BYTES)),
            *condition_filters(answer.templates),
            *facts_filters([_STREAM]),
            router(),
        ],
        local_reply_config=local_replies(statuses=[413]),
    )
    return typed.listener.Listener(
        name=name,
        internal_listener=typed.listener.ListenerInternalListenerConfig(),
        per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES,
        filter_chains=filter_chains(manager),
    )
