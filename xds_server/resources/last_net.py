"""The last net: what is still a 5xx after every retry gets the static answer after all.

Few cases are left for it, because chains end in the static tier: chains longer than the retries
reach, an overflow of the retry budget, a cluster that is not there yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xds_server.core.model import Model, StaticAnswer, Tier
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.answer import Dialect, whole
from xds_server.resources.proto import pack, typed
from xds_server.resources.static_tier import JSON, answer_headers, served_name


def author_last_net(models: Iterable[Model], failures: FailurePolicy) -> list[Any]:
    """Return the filter as a list of one, or none if the policy or the models have no use for it.

    The filter sees only the response, so it knows the model by the header that routes set, and it
    answers in JSON to streaming clients too.
    """
    actions = {
        model.name: _action(model, tier, tier.answer)
        for model in models
        for tier in model.tiers
        if tier.answer is not None
    }
    if not failures.static_on_5xx or not actions:
        return []
    x = typed.xds_matcher
    is_5xx = x.MatcherMatcherListPredicate(
        single_predicate=x.MatcherMatcherListPredicateSinglePredicate(
            input=_extension("status", typed.matcher.HttpResponseStatusCodeClassMatchInput()),
            value_match=x.StringMatcher(exact="5xx"),
        )
    )
    model_header = typed.matcher.HttpResponseHeaderMatchInput(header_name=headers.MODEL_ROUTE)
    by_model = x.MatcherMatcherTree(
        input=_extension("model", model_header),
        exact_match_map=x.MatcherMatcherTreeMatchMap(
            map={name: x.MatcherOnMatch(action=act) for name, act in sorted(actions.items())}
        ),
    )
    answer = x.MatcherMatcherListFieldMatcher(
        predicate=is_5xx, on_match=x.MatcherOnMatch(matcher=x.Matcher(matcher_tree=by_model))
    )
    matcher = x.Matcher(matcher_list=x.MatcherMatcherList(matchers=[answer]))
    config = typed.custom_response.CustomResponse(custom_response_matcher=matcher)
    return [
        typed.hcm.HttpFilter(name="envoy.filters.http.custom_response", typed_config=pack(config))
    ]


def _action(model: Model, tier: Tier, answer: StaticAnswer) -> Any:
    served = served_name(tier)
    # A static answer that is itself a 5xx comes by here too: it keeps the reason that it has.
    own = answer.status >= 500
    added = [
        *answer_headers(answer, JSON),
        headers.add(headers.SERVED_MODEL, headers.literal(served)),
        headers.add(headers.DEGRADE_REASON, headers.FAILOVER, keep=own),
    ]
    if model.tiers.index(tier):
        added.append(headers.add(headers.DOWNGRADED, "true"))
    policy = typed.local_response.LocalResponsePolicy(
        status_code=answer.status,
        body=typed.core.DataSource(
            inline_string=whole(answer.body, dialect=Dialect.CHAT, model=served)
        ),
        response_headers_to_add=added,
    )
    return _extension("static", policy)


def _extension(name: str, message: Any) -> Any:
    return typed.xds_core.TypedExtensionConfig(name=name, typed_config=pack(message))
