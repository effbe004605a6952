"""`x-no-fallback: true`: the model that was asked for, or an honest error.

Beside every route of a model there is a strict one that leads to its first tier alone. A failed request may
try another endpoint of that tier once. What is still an error is answered by the same filter as the last net,
but with 429 or 503, a time to come back and the reason; never by another tier, never with a 200.
"""

from __future__ import annotations

import json
from typing import Any

from xds_server.resources import headers
from xds_server.resources.bodies.path_kind import RETRY_AFTER
from xds_server.resources.names import METADATA
from xds_server.resources.proto import Route, RouteAction, pack, to_upb, typed
from xds_server.resources.static import response_match as m

HEADER = "x-no-fallback"
MARK = "; no-fallback"
"""What the strict route adds to `x-model-route`: how the filter knows its answers."""
RETRY_AFTER_S = 5
"""When to come back after a fault: as long as Envoy's first ejection. After a 429 without a time of its own: 1."""
RATE_LIMITED, OVERLOADED, FAULT = "rate_limited", "overloaded", "fault"


def strict(route: Route, cluster: str) -> Route:
    """Return the strict twin of a finished route, to be placed before it.

    Args:
        route: a route whose weights choose between chains.
        cluster: the cluster of the first tier.
    """
    twin = Route.FromString(route.SerializeToString())
    forbid_fallback(twin)
    twin.route.cluster = cluster
    policy = twin.route.retry_policy
    policy.retry_on = "5xx,reset,connect-failure"
    del policy.retriable_status_codes[:]
    policy.num_retries.value = min(1, policy.num_retries.value)
    policy.ClearField("retry_priority")
    policy.ClearField("retry_host_predicate")
    policy.MergeFrom(_other_endpoint().retry_policy)
    for header in twin.response_headers_to_add:
        if header.header.key == headers.MODEL_ROUTE:
            header.header.value += MARK
    return twin


def forbid_fallback(route: Route) -> None:
    """Add the condition that a request says `x-no-fallback: true`."""
    condition = route.match.headers.add(name=HEADER)
    condition.string_match.exact, condition.string_match.ignore_case = "true", True


def _other_endpoint() -> RouteAction:
    r = typed.route
    predicate = r.RetryPolicyRetryHostPredicate(
        name="envoy.retry_host_predicates.previous_hosts",
        typed_config=pack(typed.previous_hosts.PreviousHostsPredicate()),
    )
    policy = r.RetryPolicy(retry_host_predicate=[predicate], host_selection_retry_max_attempts=5)
    return to_upb(RouteAction, r.RouteAction(retry_policy=policy))


def honest_cases() -> list[Any]:
    """Author the cases of the last net for the answers of strict routes, whatever the model."""
    strict_route = m.header_ends(headers.MODEL_ROUTE, MARK)
    full = m.both(m.is_5xx(), m.header_is(headers.OVERLOADED, "true"))
    overloaded = m.either(full, m.is_engines(503))  # engines say so when their queue is full
    cases = [
        m.when(m.is_engines(429), _error(429, RATE_LIMITED, "1", "is at its limit")),
        m.when(overloaded, _error(503, OVERLOADED, "1", "has no room left")),
        m.when(m.is_5xx(), _error(503, FAULT, str(RETRY_AFTER_S), "cannot answer right now")),
    ]
    return [m.when(strict_route, m.first_of(cases))]


def _error(status: int, reason: str, retry_after: str, what: str) -> Any:
    """Author an error that says when to come back: as the engine did, if it said so."""
    # A format would see the headers of this answer, not those of the one it replaces.
    told = f"%DYNAMIC_METADATA({METADATA}:{RETRY_AFTER})%"
    engines = m.when(m.has("retry-after"), _action(status, reason, told, what))
    return m.otherwise(m.first_of([engines]), _action(status, reason, retry_after, what))


def _action(status: int, reason: str, retry_after: str, what: str) -> Any:
    error = {
        "message": f"The requested model {what}, and the request forbids a fallback ({HEADER}).",
        "type": "rate_limit_error" if status == 429 else "server_error",
        "param": None,
        "code": reason,
    }
    policy = typed.local_response.LocalResponsePolicy(
        status_code=status,
        body=typed.core.DataSource(inline_string=json.dumps({"error": error})),
        response_headers_to_add=[
            headers.add("content-type", "application/json"),
            headers.add("retry-after", retry_after),
            headers.add(headers.DEGRADE_REASON, reason),
        ],
    )
    return m.extension(reason, policy)
