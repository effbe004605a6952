"""What clients get from the picker instead of an engine's answer, in the shape that OpenAI's clients know."""

from __future__ import annotations

from xds_server.istio.picker.pick import Refusal
from xds_server.istio.picker.proto import Answer
from xds_server.resources.errors import error_body
from xds_server.resources.headers import DEGRADE_REASON
from xds_server.resources.routing.model_routing import JSON

_INVALID = "invalid_request_error"


def _answer(
    status: int,
    message: str,
    *,
    kind: str = _INVALID,
    code: str | None = None,
    param: str | None = None,
    reason: str | None = None,
    retry_after_s: int | None = None,
) -> Answer:
    headers = {"content-type": JSON}
    if reason is not None:
        headers[DEGRADE_REASON] = reason
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return Answer(
        status=status,
        body=error_body(message, kind=kind, code=code, param=param),
        headers=headers,
        details=f"endpoint_picker_{code or status}",
    )


NOT_READY = _answer(
    503,
    "No instance of this model takes requests now.",
    kind="server_error",
    code="no_instance",
    reason="no_instance",
    retry_after_s=1,
)
UNREADABLE = _answer(400, "The request needs a JSON body whose `model` is a string.", param="model")
UNNAMED = _answer(
    400,
    "The request needs a JSON body whose `model` says which model is asked for.",
    param="model",
)


TOO_MUCH_HELD = _answer(
    503,
    "Too many large requests are being read, please try again shortly.",
    kind="server_error",
    code="overloaded",
    reason="overloaded",
    retry_after_s=1,
)


def too_large(most_bytes: int) -> Answer:
    """Answer a body that has to be read and is too large for it."""
    return _answer(413, f"The body is larger than {most_bytes} bytes.", code="too_large")


def no_route(path: str) -> Answer:
    """Answer a path that is no model's."""
    plain = path.partition("?")[0][:200]
    return _answer(404, f"No model serves the path {plain}.", code="unknown_path")


def unknown_model(name: str) -> Answer:
    """Answer a request for a model that is not there, as OpenAI does."""
    return _answer(
        404, f"The model `{name[:200]}` does not exist.", param="model", code="model_not_found"
    )


def refusal(why: Refusal, retry_after_s: int) -> Answer:
    """Answer a request that is not picked for: 503 where nobody could take it, 429 where the plan sheds it."""
    if why is Refusal.NOT_READY:
        return NOT_READY
    if why is Refusal.SHED:
        message = "The service is busy, please try again shortly."
    else:
        message = "The service is busy and serves more critical requests first."
    return _answer(
        429,
        message,
        kind="rate_limit_error",
        code=why.value,
        reason=why.value,
        retry_after_s=retry_after_s,
    )
