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
from xds_server.resources import response_match as m
from xds_server.resources.answer import Dialect, streamed, whole
from xds_server.resources.no_fallback import honest_cases
from xds_server.resources.proto import pack, typed
from xds_server.resources.static_routes import EVENTS, JSON, answer_headers
from xds_server.resources.static_tier import served_name


def author_last_net(models: Iterable[Model], failures: FailurePolicy) -> list[Any]:
    """Return the filter as a list of one, or none if the policy or the models have no use for it.

    The filter sees only the response, so it knows the model by the header that routes set; whether to stream
    it knows where the body was read (`failures.answer_timeout_s`), else it answers in JSON.
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
    failed = m.both(m.either(m.is_5xx(), m.is_engines_429()), m.lacks(headers.STATIC_TEMPLATE))
    cases = [*honest_cases(), m.when(failed, by_model)]
    config = typed.custom_response.CustomResponse(custom_response_matcher=m.first_of(cases))
    return [
        typed.hcm.HttpFilter(name="envoy.filters.http.custom_response", typed_config=pack(config))
    ]


def _net(model: Model, tier: Tier, answer: StaticAnswer) -> Any:
    """Author what a model's failed answers become: a stream for who asked for one, else JSON."""
    x, served = typed.xds_matcher, served_name(tier)
    text = whole(answer.body, dialect=Dialect.CHAT, model=served)
    plain = _action(model, tier, text, JSON)
    if not 200 <= answer.status < 300:  # an error is no stream: its readers expect JSON
        return x.Matcher(on_no_match=x.MatcherOnMatch(action=plain))
    events = streamed(answer.body, dialect=Dialect.CHAT, model=served)
    matcher = m.first_of([m.when(m.asks_for_stream(), _action(model, tier, events, EVENTS))])
    matcher.on_no_match = x.MatcherOnMatch(action=plain)
    return matcher


def _action(model: Model, tier: Tier, text: str, content_type: str) -> Any:
    answer = tier.answer
    assert answer is not None
    added = [
        *answer_headers(answer, content_type),
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
