"""The last net: what is still a 5xx or 429 after every retry gets the static answer after all.

Few cases are left for it, because chains end in the static tier: chains longer than the retries
reach, an overflow of the retry budget, a cluster that is not there yet. Requests that forbid a fallback get an honest
error instead (`no_fallback`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xds_server.core.model import Model, StaticAnswer, Tier
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.bodies.path_kind import ENDINGS, notes_filter
from xds_server.resources.proto import pack, typed
from xds_server.resources.routing.no_fallback import honest_cases
from xds_server.resources.static import response_match as m
from xds_server.resources.static.answer import Dialect, streamed, whole
from xds_server.resources.static.static_routes import (
    DEFAULT,
    EVENTS,
    JSON,
    UNAVAILABLE,
    answer_headers,
    unavailable,
)
from xds_server.resources.static.static_tier import served_name


def author_last_net(models: Iterable[Model], failures: FailurePolicy) -> list[Any]:
    """Return the filters, or none if the policy or the models have no use for it.

    The filter sees only the response, so it knows the model by the header that routes set; whether to stream
    it knows where the body was read (`failures.answer_timeout_s`), else it answers in JSON. What was asked for it knows
    by a filter of its own, which comes after it and so hears of answers first.
    """
    nets = {
        model.name: _net(model, tier, tier.answer)
        for model in models
        for tier in model.tiers
        if tier.answer is not None
    }
    if not failures.static_on_5xx or not nets:
        return []
    x = typed.xds_matcher
    model_header = typed.matcher.HttpResponseHeaderMatchInput(header_name=headers.MODEL_ROUTE)
    by_model = x.Matcher(
        matcher_tree=x.MatcherMatcherTree(
            input=m.extension("model", model_header),
            exact_match_map=x.MatcherMatcherTreeMatchMap(
                map={name: x.MatcherOnMatch(matcher=net) for name, net in sorted(nets.items())}
            ),
        )
    )
    # What the static tier said stays, also where that is an error.
    failed = m.both(m.either(m.is_5xx(), m.is_engines(429)), m.lacks(headers.STATIC_TEMPLATE))
    cases = [*honest_cases(), m.when(failed, by_model)]
    config = typed.custom_response.CustomResponse(custom_response_matcher=m.first_of(cases))
    return [
        typed.hcm.HttpFilter(name="envoy.filters.http.custom_response", typed_config=pack(config)),
        notes_filter(),
    ]


def _net(model: Model, tier: Tier, answer: StaticAnswer) -> Any:
    """Author what a model's failed answers become: the answer for completions, an error for the rest."""
    served = served_name(tier)
    cases = [
        m.when(m.path_is_of(dialect), _spoken(model, tier, answer, dialect)) for dialect in ENDINGS
    ]
    error = unavailable(answer)
    text = whole(error.body, dialect=Dialect.CHAT, model=served)
    action = _action(model, tier, error, text, JSON, template=UNAVAILABLE)
    return m.otherwise(m.first_of(cases), action)


def _spoken(model: Model, tier: Tier, answer: StaticAnswer, dialect: Dialect) -> Any:
    """Author the answer in a dialect: a stream for who asked for one, else JSON."""
    served = served_name(tier)
    text = whole(answer.body, dialect=dialect, model=served)
    plain = _action(model, tier, answer, text, JSON)
    if not 200 <= answer.status < 300:  # an error is no stream: its readers expect JSON
        return plain
    events = streamed(answer.body, dialect=dialect, model=served)
    streams = m.when(m.asks_for_stream(), _action(model, tier, answer, events, EVENTS))
    return m.otherwise(m.first_of([streams]), plain)


def _action(
    model: Model,
    tier: Tier,
    answer: StaticAnswer,
    text: str,
    content_type: str,
    *,
    template: str = DEFAULT,
) -> Any:
    added = [
        *answer_headers(answer, content_type, template=template),
        headers.add(headers.SERVED_MODEL, headers.literal(served_name(tier))),
        headers.add(headers.DEGRADE_REASON, headers.FAILOVER),
    ]
    if model.tiers.index(tier):
        added.append(headers.add(headers.DOWNGRADED, "true"))
    policy = typed.local_response.LocalResponsePolicy(
        status_code=answer.status,
        body=typed.core.DataSource(inline_string=text),
        response_headers_to_add=added,
    )
    return m.extension("static", policy)
