"""Errors that proxies answer by themselves, in the shape that OpenAI's clients know."""

from __future__ import annotations

import json
from typing import Any


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> str:
    """Return the JSON body of an error.

    Args:
        message: A sentence for a person.
        kind: `error.type`, e.g. `invalid_request_error`.
        param: The key of the request that is wrong.
        code: `error.code`, what programs look at.
    """
    return json.dumps(error_object(message, kind=kind, param=param, code=code))


def error_object(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the body of `error_body` before it is written."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
