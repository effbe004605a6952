"""What a proxy says where it answers by itself and nobody wrote down what: OpenAI's errors in place of Envoy's texts.

Envoy answers some requests with a line of plain text or with nothing: no route, a body that is too large, headers it cannot
read, no endpoint, no time left. Clients of the OpenAI protocol want JSON there too. Answers that somebody has written (the
static tier, the list of models, refusals) carry a content type before they come here, and so are left alone.

Nothing of this is looked at before such an answer is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from xds_server.resources import headers
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES
from xds_server.resources.errors import error_body
from xds_server.resources.proto import pack, typed

JSON = "application/json"
RETRY_AFTER_S = 5
"""When to come back where no endpoint is left: as long as Envoy's first ejection."""
INVALID, SERVER = "invalid_request_error", "server_error"


class _Reply(NamedTuple):
    """A status of Envoy's own, and what is said with it."""

    status: int
    message: str
    kind: str
    code: str | None = None


REPLIES = (
    _Reply(403, "This proxy opens no tunnels: no WebSocket, no CONNECT.", INVALID),
    _Reply(404, "Nothing is served under this host and path.", INVALID, "not_found"),
    _Reply(408, "The request did not arrive in time.", INVALID, "timeout"),
    _Reply(
        413,
        f"The body is larger than {BUFFER_LIMIT_BYTES >> 20} MiB.",
        INVALID,
        "request_too_large",
    ),
    _Reply(426, "HTTP/1.1 or HTTP/2 is needed.", INVALID),
    _Reply(431, "The headers are larger than this proxy takes.", INVALID, "headers_too_large"),
    _Reply(501, "This transfer encoding is not known here.", INVALID),
    _Reply(503, "No engine can take this request now.", SERVER, "unavailable"),
    _Reply(504, "No engine answered in time.", SERVER, "timeout"),
)
STATUSES = tuple(each.status for each in REPLIES)
_UNREADABLE = _Reply(400, "The request cannot be read.", INVALID)
_FAILED = _Reply(500, "No engine answered this request.", SERVER, "unavailable")


def local_replies(first: Iterable[Any] = (), *, statuses: Collection[int] = STATUSES) -> Any:
    """Author the `local_reply_config` of a listener.

    Args:
        first: Mappings of its own, which come before these.
        statuses: Those that have words of their own, where not all can happen.
    """
    equal, least = typed.accesslog.ComparisonFilterOp.EQ, typed.accesslog.ComparisonFilterOp.GE
    mappers = [*first, typed.hcm.ResponseMapper(filter=_has("content-type"))]
    if 503 in statuses:
        again = [headers.add("retry-after", str(RETRY_AFTER_S))]
        mappers.append(_mapper(equal, _reply_of(503), _lacks_route(), added=again))
    mappers += (_mapper(equal, each) for each in REPLIES if each.status in statuses)
    return typed.hcm.LocalReplyConfig(
        mappers=[*mappers, _mapper(least, _FAILED), _mapper(least, _UNREADABLE)]
    )


def said(status: int) -> Any:
    """Author what is said with a status of 500 and more, for a mapping of one's own."""
    return _said(_reply_of(status))


def _reply_of(status: int) -> _Reply:
    return next((each for each in REPLIES if each.status == status), _FAILED)


def _said(reply: _Reply) -> Any:
    body = error_body(reply.message, kind=reply.kind, code=reply.code)
    return typed.core.SubstitutionFormatString(
        text_format_source=typed.core.DataSource(inline_string=headers.literal(body)),
        content_type=JSON,
    )


def _mapper(comparison: Any, reply: _Reply, *also: Any, added: Iterable[Any] = ()) -> Any:
    access = typed.accesslog
    status = typed.core.RuntimeUInt32(default_value=reply.status, runtime_key="fleet.local_reply")
    where = access.AccessLogFilter(
        status_code_filter=access.StatusCodeFilter(
            comparison=access.ComparisonFilter(op=comparison, value=status)
        )
    )
    if also:
        where = access.AccessLogFilter(and_filter=access.AndFilter(filters=[where, *also]))
    return typed.hcm.ResponseMapper(
        filter=where, body_format_override=_said(reply), headers_to_add=list(added)
    )


def _has(header: str) -> Any:
    """Author "somebody gave the answer such a header"."""
    return _is_true(f"'{header}' in response.headers")


def _lacks_route() -> Any:
    """Author "no model's route, or one without a last net".

    A net would take the time to come back for an engine's.
    """
    return _is_true(f"!('{headers.MODEL_ROUTE}' in response.headers)")


def _is_true(expression: str) -> Any:
    cel = typed.cel_filter.ExpressionFilter(expression=expression)
    return typed.accesslog.AccessLogFilter(
        extension_filter=typed.accesslog.ExtensionFilter(name="cel", typed_config=pack(cel))
    )
