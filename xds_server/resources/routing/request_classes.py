"""What a class of requests changes of a model's routes: who it is, its times, its attempts, its refusal.

Each class has routes of its own, so that it can have weights of its own. The first class that fits is a
request's; the class without conditions comes last. Proxies tell engines and logs the class in a request header,
and limiters in the route's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xds_server.core.model import Model, RequestClass, WhenCritical
from xds_server.core.policy import FailurePolicy
from xds_server.resources import headers
from xds_server.resources.capability import Capability
from xds_server.resources.errors import error_body
from xds_server.resources.names import METADATA
from xds_server.resources.proto import Route, to_upb, typed
from xds_server.resources.routing.no_fallback import forbid_fallback

CLASS_HEADER = "x-request-class"
"""Set on requests to the name of their class, whatever the client says."""
CLASS_KEY = "class"
"""The same in the metadata of the route."""
RETRIES_TOTAL = 3
"""More attempts of one request than this are made for no class."""
RETRY_AFTER_S = 5
"""When a rejected class may come back: about as long as a tier stays critical at least."""
SHED = "class_shed"
"""`x-degrade-reason` of a rejected class."""


def in_order(classes: Sequence[RequestClass], capability: Capability) -> tuple[RequestClass, ...]:
    """Return the classes in the order of their routes: the rest comes last. gRPC clients have none."""
    if capability is Capability.GRPC:
        return ()
    return tuple(sorted(classes, key=lambda each: each.is_rest))


def patience(failures: FailurePolicy, request_class: RequestClass | None) -> FailurePolicy:
    """Return the policy with the times of a class."""
    if request_class is None or request_class.header_timeout_s is None:
        return failures
    return replace(failures, header_timeout_s=request_class.header_timeout_s)


def repeats(request_class: RequestClass | None, *, walk: int, capability: Capability) -> int:
    """Return how often a class's chain repeats its first tier.

    Args:
        request_class: The class; None has none.
        walk: Retries that lead from the chain's first tier to its last: they are never given up.
        capability: Only composite chains can hold a tier twice.
    """
    if request_class is None or capability is not Capability.COMPOSITE:
        return 0
    return max(0, min(request_class.retries, RETRIES_TOTAL - walk))


def all_repeats(
    classes: Sequence[RequestClass], *, walk: int, capability: Capability
) -> tuple[int, ...]:
    """Return which chains there must be besides the one that repeats nothing."""
    found = {repeats(each, walk=walk, capability=capability) for each in classes}
    return tuple(sorted(found - {0}))


def adopt(route: Route, model: Model, request_class: RequestClass) -> None:
    """Make a model's route the route of a class: its conditions, its name, its marks."""
    route.name = f"{model.name}/{request_class.name}"
    route.match.MergeFrom(_conditions(request_class).match)
    route.metadata.filter_metadata[METADATA].fields[CLASS_KEY].string_value = request_class.name
    mark = route.request_headers_to_add.add()
    mark.header.key, mark.header.value = CLASS_HEADER, headers.literal(request_class.name)
    mark.append_action = mark.OVERWRITE_IF_EXISTS_OR_ADD


def _conditions(request_class: RequestClass) -> Route:
    r, m = typed.route, typed.matcher
    conditions = []
    if request_class.prefix is not None:
        # The path itself is the model's condition already.
        start = m.StringMatcher(prefix=request_class.prefix)
        conditions.append(r.HeaderMatcher(name=":path", string_match=start))
    if request_class.value is not None:
        exact = m.StringMatcher(exact=request_class.value)
        conditions.append(r.HeaderMatcher(name=request_class.header, string_match=exact))
    elif request_class.header is not None:
        conditions.append(r.HeaderMatcher(name=request_class.header, present_match=True))
    return to_upb(Route, r.Route(match=r.RouteMatch(headers=conditions)))


def sheds_any(classes: Sequence[RequestClass]) -> bool:
    """Whether requests of any class may be rejected."""
    return any(each.when_critical is not WhenCritical.SERVE for each in classes)


def rejection(route: Route, request_class: RequestClass) -> Route:
    """Return the route that rejects what a class's other routes take, to be placed before them; it is off.

    Where the class gets the static answer, that is for requests that forbid it.

    Args:
        route: The last one of the class, without conditions besides those of model and class.
        request_class: One that is not served as ever while the first tier is critical.
    """
    twin = Route(name=route.name, metadata=route.metadata)
    twin.match.CopyFrom(route.match)
    if request_class.when_critical is WhenCritical.STATIC:
        forbid_fallback(twin)
    set_rejecting(twin, rejecting=False)
    twin.direct_response.status = 429
    twin.direct_response.body.inline_string = error_body(
        "The service is busy and serves more critical requests first.",
        kind="rate_limit_error",
        code=SHED,
    )
    for name, value in (
        ("content-type", "application/json"),
        ("retry-after", str(RETRY_AFTER_S)),
        (headers.DEGRADE_REASON, SHED),
    ):
        added = twin.response_headers_to_add.add()
        added.header.key, added.header.value = name, value
        added.append_action = added.OVERWRITE_IF_EXISTS_OR_ADD
    return twin


def set_rejecting(route: Route, *, rejecting: bool) -> None:
    """Switch a rejection on or off: a number, so that a push of weights can do it."""
    route.match.runtime_fraction.default_value.numerator = 100 if rejecting else 0
