"""What clients are told when they are not admitted, in the form of OpenAI's errors.

Over a limit: 429 with `retry-after`. A request whose cost nobody can tell: 400, before it is routed anywhere, so
that what cannot be counted cannot pass uncounted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xds_server.resources import headers
from xds_server.resources.bodies.request_facts import Fact
from xds_server.resources.bodies.token_cost import (
    CHOICES,
    CHOICES_MAX,
    TOKENS_MAX,
    uncountable,
)
from xds_server.resources.errors import error_body
from xds_server.resources.limits.admission import LIMITED
from xds_server.resources.names import UNCOUNTED_ROUTE
from xds_server.resources.proto import Route, pack, typed

JSON = "application/json"

_TOO_MUCH = "The limit of requests or tokens is reached. Try again after the time in `retry-after`."
_UNCOUNTED = "`{fact}` must be a number from {least} to {most}, and the body JSON."


def over_limit_reply() -> Any:
    """Author the mapping that gives a limiter's 429 its body.

    Envoy sets its flag for such answers only after it has written them, but their details are known.
    """
    access = typed.accesslog
    is_429 = access.AccessLogFilter(
        status_code_filter=access.StatusCodeFilter(
            comparison=access.ComparisonFilter(
                op=access.ComparisonFilterOp.EQ,
                value=typed.core.RuntimeUInt32(default_value=429, runtime_key="fleet.over_limit"),
            )
        )
    )
    expression = typed.cel_filter.ExpressionFilter(
        expression=f"response.code_details == '{LIMITED}'"
    )
    is_limited = access.AccessLogFilter(
        extension_filter=access.ExtensionFilter(name="cel", typed_config=pack(expression))
    )
    body = error_body(_TOO_MUCH, kind="rate_limit_error", code="rate_limit_exceeded")
    return typed.hcm.ResponseMapper(
        filter=access.AccessLogFilter(and_filter=access.AndFilter(filters=[is_429, is_limited])),
        body_format_override=typed.core.SubstitutionFormatString(
            text_format_source=typed.core.DataSource(inline_string=body), content_type=JSON
        ),
    )


def uncounted_routes(prefix: str, conditions: Sequence[Any]) -> list[Route]:
    """Return the routes that refuse a model's requests whose cost nobody can tell; they come before its own.

    Args:
        prefix: Of the model's paths.
        conditions: What else makes a request the model's.
    """
    return [_refused(prefix, [*conditions, bad], fact) for fact, bad in uncountable()]


def _refused(prefix: str, conditions: list[Any], fact: Fact) -> Route:
    r = typed.route
    message = _UNCOUNTED.format(
        fact=fact.value,
        least=1 if fact is Fact.CHOICES else 0,
        most=CHOICES_MAX if fact in CHOICES else TOKENS_MAX,
    )
    body = error_body(message, kind="invalid_request_error", param=fact.value)
    route = r.Route(
        name=UNCOUNTED_ROUTE,
        match=r.RouteMatch(prefix=prefix, dynamic_metadata=conditions),
        direct_response=r.DirectResponseAction(
            status=400, body=typed.core.DataSource(inline_string=body)
        ),
        response_headers_to_add=[headers.add("content-type", JSON)],
    )
    return Route.FromString(bytes(route))
