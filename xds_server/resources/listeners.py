"""LDS: where proxies listen, and the internal listener behind each model's static tier.

Nothing here follows the weights: a changed listener does not reach connections that are already open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xds_server.core.model import Model, StaticAnswer, Tier, Topology
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.answer import Dialect, streamed, whole
from xds_server.resources.capability import Capability
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES, ads
from xds_server.resources.names import (
    LISTENER_NAME,
    METADATA,
    ROUTE_CONFIG_NAME,
    static_listener_name,
)
from xds_server.resources.proto import duration, pack, typed
from xds_server.resources.snapshot import Resource

STREAM_IDLE_S = 300.0
"""Envoy's default; raised where the policy allows longer silence inside a stream."""
STREAM_IDLE_MARGIN_S = 60.0
DIRECT_RESPONSE_LIMIT_BYTES = 4096
"""Envoy's default limit of a direct response's body."""

_JSON = "application/json"
_EVENTS = "text/event-stream"


def listener_resources(
    topology: Topology, failures: FailurePolicy, capability: Capability
) -> Iterator[Resource]:
    """Yield the listener for clients and those of the static tiers, or what gRPC clients ask for."""
    if capability is Capability.GRPC:
        domains = {domain for model in topology.models for domain in model.domains}
        exact = sorted(domain for domain in domains if "*" not in domain)
        for name in dict.fromkeys([LISTENER_NAME, *exact]):
            yield Resource.of(name, bytes(author_api_listener(name)))
        return
    yield Resource.of(LISTENER_NAME, bytes(author_listener(topology, failures=failures)))
    for model in topology.models:
        for tier in model.tiers:
            if tier.is_static:
                name = static_listener_name(model.name)
                yield Resource.of(name, bytes(author_static_listener(model, tier)))


def author_listener(topology: Topology, *, failures: FailurePolicy) -> Any:
    """Author the listener that clients reach."""
    http_filters = [*_last_net(topology.models, failures), _router()]
    address = typed.core.SocketAddress(
        address=topology.listener_host, port_value=topology.listener_port
    )
    return typed.listener.Listener(
        name=LISTENER_NAME,
        address=typed.core.Address(socket_address=address),
        per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES,
        filter_chains=_filter_chains(_connection_manager(http_filters, failures)),
    )


def author_api_listener(name: str) -> Any:
    """Author the listener that a proxyless gRPC client asks for, by the name it dials."""
    manager = typed.hcm.HttpConnectionManager(rds=_rds(), http_filters=[_router()])
    return typed.listener.Listener(
        name=name, api_listener=typed.listener.ApiListener(api_listener=pack(manager))
    )


def author_static_listener(model: Model, tier: Tier) -> Any:
    """Author the internal listener that answers for a static tier.

    The `buffer` filter reads each request to its end first: an answer before that makes Envoy close
    the connection. Only here is the body parsed, so a normal request never pays for it.
    """
    answer = tier.answer
    if answer is None:
        raise ValueError(f"tier {model.name}/{tier.name} has no answer")
    hcm, route = typed.hcm, typed.route
    routes = _answer_routes(model, tier, answer)
    bodies = [len(each.direct_response.body.inline_string.encode()) for each in routes]
    config = route.RouteConfiguration(
        name=static_listener_name(model.name),
        virtual_hosts=[route.VirtualHost(name="static", domains=["*"], routes=routes)],
        max_direct_response_body_size_bytes=max(DIRECT_RESPONSE_LIMIT_BYTES, *bodies),
    )
    http_filters = [
        hcm.HttpFilter(
            name="envoy.filters.http.buffer",
            typed_config=pack(typed.buffer.Buffer(max_request_bytes=BUFFER_LIMIT_BYTES)),
        ),
        hcm.HttpFilter(
            name="envoy.filters.http.json_to_metadata", typed_config=pack(_stream_to_metadata())
        ),
        _router(),
    ]
    manager = hcm.HttpConnectionManager(
        stat_prefix="static", route_config=config, http_filters=http_filters
    )
    return typed.listener.Listener(
        name=static_listener_name(model.name),
        internal_listener=typed.listener.ListenerInternalListenerConfig(),
        per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES,
        filter_chains=_filter_chains(manager),
    )


def _connection_manager(http_filters: Sequence[Any], failures: FailurePolicy) -> Any:
    idle_s = max(STREAM_IDLE_S, failures.token_stall_s + STREAM_IDLE_MARGIN_S)
    return typed.hcm.HttpConnectionManager(
        stat_prefix=LISTENER_NAME,
        rds=_rds(),
        http_filters=list(http_filters),
        stream_idle_timeout=duration(idle_s),
        normalize_path=True,  # prefixes decide, so `/x/../v1/` may not pass for something else
    )


def _rds() -> Any:
    return typed.hcm.Rds(config_source=ads(), route_config_name=ROUTE_CONFIG_NAME)


def _filter_chains(manager: Any) -> list[Any]:
    network_filter = typed.listener.Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=pack(manager)
    )
    return [typed.listener.FilterChain(filters=[network_filter])]


def _router() -> Any:
    return typed.hcm.HttpFilter(
        name="envoy.filters.http.router", typed_config=pack(typed.router.Router())
    )


def _stream_to_metadata() -> Any:
    """Copy the body's `stream` into metadata; a body that is not JSON leaves none."""
    j = typed.json_to_metadata
    rule = j.JsonToMetadataRule(
        selectors=[j.JsonToMetadataSelector(key="stream")],
        on_present=j.JsonToMetadataKeyValuePair(metadata_namespace=METADATA, key="stream"),
    )
    return j.JsonToMetadata(request_rules=j.JsonToMetadataMatchRules(rules=[rule]))


def _answer_routes(model: Model, tier: Tier, answer: StaticAnswer) -> list[Any]:
    """Return first match wins: text before chat, and `stream` in the body before the Accept header."""
    index, serves = model.tiers.index(tier), tier.serves or tier.name
    common = _answer_headers(answer, served=serves, downgraded=index > 0)
    is_text = {
        "safe_regex": typed.matcher.RegexMatcher(regex=".*/completions"),
        "headers": [
            typed.route.HeaderMatcher(
                name=":path",
                string_match=typed.matcher.StringMatcher(contains="/chat/completions"),
                invert_match=True,
            )
        ],
    }
    routes = []
    for dialect, path in ((Dialect.TEXT, is_text), (Dialect.CHAT, {"prefix": "/"})):
        document = whole(answer.body, dialect=dialect, model=serves)
        if 200 <= answer.status < 300:  # an error is no stream: its readers expect JSON
            events = streamed(answer.body, dialect=dialect, model=serves)
            stream = [(_wants_stream(value=True), events, _EVENTS)]
            stream += [(_wants_stream(value=False), document, _JSON)]
            stream += [(_accepts_events(), events, _EVENTS)]
        else:
            stream = []
        for condition, text, content_type in [*stream, ({}, document, _JSON)]:
            match = {**path, **condition}
            match["headers"] = [*path.get("headers", []), *condition.get("headers", [])]
            routes.append(
                typed.route.Route(
                    match=typed.route.RouteMatch(**match),
                    direct_response=typed.route.DirectResponseAction(
                        status=answer.status, body=typed.core.DataSource(inline_string=text)
                    ),
                    response_headers_to_add=[headers.add("content-type", content_type), *common],
                )
            )
    return routes


def _wants_stream(*, value: bool) -> dict[str, Any]:
    m = typed.matcher
    is_value = m.MetadataMatcher(
        filter=METADATA,
        path=[m.MetadataMatcherPathSegment(key="stream")],
        value=m.ValueMatcher(bool_match=value),
    )
    return {"dynamic_metadata": [is_value]}


def _accepts_events() -> dict[str, Any]:
    contains = typed.matcher.StringMatcher(contains=_EVENTS)
    return {"headers": [typed.route.HeaderMatcher(name="accept", string_match=contains)]}


def _answer_headers(answer: StaticAnswer, *, served: str, downgraded: bool) -> list[Any]:
    result = [headers.add(headers.SERVED_MODEL, headers.literal(served))]
    if downgraded:
        result.append(headers.add(headers.DOWNGRADED, "true"))
    if answer.retry_after_s is not None:
        result.append(headers.add("retry-after", str(answer.retry_after_s)))
    if answer.status >= 500 or answer.status == 429:
        # The operator wants this status: retrying it would run out of members and hide it.
        result.append(headers.add(headers.OVERLOADED, "true"))
    return result


def _last_net(models: Iterable[Model], failures: FailurePolicy) -> list[Any]:
    """Return the filter that answers what is still a 5xx after all retries, or none.

    The body is JSON for streaming clients too: the filter sees only the response.
    """
    answers = {
        model.name: _last_answer(model, tier, tier.answer)
        for model in models
        for tier in model.tiers
        if tier.answer is not None
    }
    if not failures.static_on_5xx or not answers:
        return []
    x = typed.xds_matcher
    is_5xx = x.MatcherMatcherListPredicate(
        single_predicate=x.MatcherMatcherListPredicateSinglePredicate(
            input=_extension("status", typed.matcher.HttpResponseStatusCodeClassMatchInput()),
            value_match=x.StringMatcher(exact="5xx"),
        )
    )
    by_model = x.MatcherMatcherTree(
        input=_extension(
            "model", typed.matcher.HttpResponseHeaderMatchInput(header_name=headers.MODEL_ROUTE)
        ),
        exact_match_map=x.MatcherMatcherTreeMatchMap(
            map={
                name: x.MatcherOnMatch(action=_extension("static", policy))
                for name, policy in sorted(answers.items())
            }
        ),
    )
    matcher = x.Matcher(
        matcher_list=x.MatcherMatcherList(
            matchers=[
                x.MatcherMatcherListFieldMatcher(
                    predicate=is_5xx,
                    on_match=x.MatcherOnMatch(matcher=x.Matcher(matcher_tree=by_model)),
                )
            ]
        )
    )
    return [
        typed.hcm.HttpFilter(
            name="envoy.filters.http.custom_response",
            typed_config=pack(
                typed.custom_response.CustomResponse(custom_response_matcher=matcher)
            ),
        )
    ]


def _last_answer(model: Model, tier: Tier, answer: StaticAnswer) -> Any:
    serves = tier.serves or tier.name
    reason = headers.add(headers.DEGRADE_REASON, headers.FAILOVER, keep=True)
    text = whole(answer.body, dialect=Dialect.CHAT, model=serves)
    downgraded = model.tiers.index(tier) > 0
    return typed.local_response.LocalResponsePolicy(
        status_code=answer.status,
        body=typed.core.DataSource(inline_string=text),
        response_headers_to_add=[
            headers.add("content-type", _JSON),
            reason,
            *_answer_headers(answer, served=serves, downgraded=downgraded),
        ],
    )


def _extension(name: str, message: Any) -> Any:
    return typed.xds_core.TypedExtensionConfig(name=name, typed_config=pack(message))
