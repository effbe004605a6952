"""Which model a request asks for: the body's `model` as a condition of routes, and what nobody serves.

Names are looked up where proxies put the body's facts (`request_facts`). A model without names takes whatever
is asked for. Where no model takes the rest, an unknown name gets the 404 that OpenAI's clients know.

Routes reach connections that are older than the filter which reads the names, and go on for minutes: what comes
over them names no model, not even none, and gets what it had before names were asked for, the first model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xds_server.core.model import Model
from xds_server.resources import headers
from xds_server.resources.bodies.request_facts import (
    Fact,
    Reading,
    fact_is,
    fact_is_absent,
    fact_is_one_of,
    fact_is_present,
)
from xds_server.resources.capability import Capability
from xds_server.resources.errors import error_body
from xds_server.resources.names import METADATA, NO_MODEL_ROUTE, UNKNOWN_MODEL_ROUTE
from xds_server.resources.proto import Route, to_upb, typed

JSON = "application/json"
_INVALID = "invalid_request_error"
_NONE = False
"""In place of the name where the body was read and has none: no name is that."""
_UNNAMED = "The request needs a JSON body whose `model` says which model is asked for."
_NOTHING = "There is nothing here that is not asked for by a JSON body whose `model` names it."


def model_readings(models: Iterable[Model]) -> Iterator[Reading]:
    """Yield what must be known of bodies: nothing where no route depends on it."""
    if any(not model.takes_any for model in models):
        yield Reading(fact=Fact.MODEL, missing=_NONE, error=_NONE, any_content_type=True)


def conditions(model: Model) -> list[Any]:
    """Return the conditions on the body under which a request is this model's.

    A default needs none, it comes after the others.
    """
    return [] if model.takes_any else [fact_is_one_of(Fact.MODEL, model.names)]


def adopt(route: Route, model: Model) -> None:
    """Add a model's `conditions` to its route."""
    r = typed.route
    for each in conditions(model):
        match = r.RouteMatch(dynamic_metadata=[each])
        route.match.MergeFrom(to_upb(Route, r.Route(match=match)).match)


def unread(route: Route) -> Route:
    """Return the twin of a model's route that takes the requests whose bodies nobody has read."""
    twin = Route.FromString(route.SerializeToString())
    others = [each for each in twin.match.dynamic_metadata if each.path[0].key != Fact.MODEL]
    del twin.match.dynamic_metadata[:]
    twin.match.dynamic_metadata.extend(others)
    absent = typed.route.RouteMatch(dynamic_metadata=[fact_is_absent(Fact.MODEL)])
    twin.match.MergeFrom(to_upb(Route, typed.route.Route(match=absent)).match)
    return twin


def models_of_the_unread(models: Sequence[Model]) -> tuple[Model, ...]:
    """Return the models of a virtual host whose routes have an `unread` twin: the first of each prefix.

    None where a model takes the rest: it takes these too.
    """
    first = {model.prefix: model for model in reversed(models)}
    return tuple(first[prefix] for prefix in _strict_prefixes(models))


def in_order(models: Iterable[Model]) -> tuple[Model, ...]:
    """Return the models of a virtual host in the order of their routes.

    The longest prefix comes first, and of those with the same prefix the model that takes the rest last.
    """
    return tuple(sorted(models, key=lambda model: (-len(model.prefix), model.takes_any)))


def reachable_models(models: Sequence[Model], capability: Capability) -> tuple[Model, ...]:
    """Return the models of a virtual host that clients can reach.

    gRPC clients see no bodies: where several models share a prefix, theirs is the one that takes the rest.
    """
    if capability is not Capability.GRPC:
        return tuple(models)
    sharing = {model.prefix: sum(m.prefix == model.prefix for m in models) for model in models}
    return tuple(model for model in models if model.takes_any or sharing[model.prefix] == 1)


def not_found_routes(models: Sequence[Model], capability: Capability) -> list[Route]:
    """Return the routes for requests that name no model of a virtual host, longest prefix first.

    They come last. A request that another model takes, under a shorter prefix, never gets here.
    """
    if capability is Capability.GRPC:
        return []
    return [
        route for prefix in _strict_prefixes(models) for route in _not_found(prefix, capability)
    ]


def _strict_prefixes(models: Sequence[Model]) -> list[str]:
    """Return the prefixes under which no model takes the rest, the longest first."""
    defaults = tuple(model.prefix for model in models if model.takes_any)
    prefixes = (model.prefix for model in in_order(models) if not model.takes_any)
    return [each for each in dict.fromkeys(prefixes) if not each.startswith(defaults)]


def _not_found(prefix: str, capability: Capability) -> Iterator[Route]:
    r = typed.route
    unnamed = [fact_is(Fact.MODEL, _NONE)]
    post = [method("POST")]
    match = r.RouteMatch(prefix=prefix, dynamic_metadata=unnamed, headers=post)
    yield answer(NO_MODEL_ROUTE, match, 400, error_body(_UNNAMED, kind=_INVALID, param="model"))
    match = r.RouteMatch(prefix=prefix, dynamic_metadata=unnamed)
    yield answer(NO_MODEL_ROUTE, match, 404, error_body(_NOTHING, kind=_INVALID))
    match = r.RouteMatch(prefix=prefix, dynamic_metadata=[fact_is_present(Fact.MODEL)])
    # Older proxies have no format here.
    named = f"%DYNAMIC_METADATA({METADATA}:{Fact.MODEL})%"
    shows = capability is not Capability.AGGREGATE
    yield answer(
        UNKNOWN_MODEL_ROUTE,
        match,
        404,
        error_body(
            f"The model `{named}` does not exist." if shows else "This model does not exist.",
            kind=_INVALID,
            param="model",
            code="model_not_found",
        ),
        is_format=shows,
    )


def answer(name: str, match: Any, status: int, body: str, *, is_format: bool = False) -> Route:
    """Return a route whose requests the proxy answers by itself, in JSON."""
    r = typed.route
    action = r.DirectResponseAction(status=status)
    if is_format:
        action.body_format = typed.core.SubstitutionFormatString(
            json_format=typed.protobuf.Struct.from_json(body), content_type=JSON
        )
    else:
        action.body = typed.core.DataSource(inline_string=body)
    route = r.Route(name=name, match=match, direct_response=action)
    route.response_headers_to_add = [headers.add("content-type", JSON)]
    return Route.FromString(bytes(route))


def method(name: str) -> Any:
    """Author the condition on a request's method."""
    exact = typed.matcher.StringMatcher(exact=name)
    return typed.route.HeaderMatcher(name=":method", string_match=exact)
