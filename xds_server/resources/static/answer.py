"""The static tier's answer in the forms that clients ask for: chat or text, whole or streamed.

The operator writes one JSON document. Clients of the OpenAI protocol call two paths that answer in
different shapes, and `"stream": true` wants either as server-sent events; all four are derived here.
What the protocol requires and the operator left out is added; what was written is never changed. A document without
`choices` is nobody's dialect: it is sent as it is, streamed as one event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_Object = dict[str, Any]


class Dialect(StrEnum):
    """The two shapes of an answer in the OpenAI protocol."""

    CHAT = "chat"
    """`/v1/chat/completions`"""
    TEXT = "text"
    """`/v1/completions`"""


def whole(body: Mapping[str, Any], *, dialect: Dialect, model: str) -> str:
    """Return the JSON answer."""
    return _dump(_complete(body, dialect, model))


def streamed(body: Mapping[str, Any], *, dialect: Dialect, model: str) -> str:
    """Return the answer as server-sent events that end in `[DONE]`.

    A choice becomes one chunk with everything and, as real engines do, a last one that only says why it ended.
    """
    answer = _complete(body, dialect, model)
    if not _has_choices(body):
        return _events([answer])
    head = {key: value for key, value in answer.items() if key not in {"choices", "usage"}}
    if dialect is Dialect.CHAT:
        head["object"] = "chat.completion.chunk"
    chunks: list[_Object] = []
    for choice in answer["choices"]:
        reason, rest = choice["finish_reason"], {**choice, "finish_reason": None}
        if dialect is Dialect.CHAT:
            message = rest.pop("message")
            chunks.append(head | {"choices": [rest | {"delta": _delta(message)}]})
            end = {"index": choice["index"], "delta": {}, "finish_reason": reason}
        else:
            chunks.append(head | {"choices": [rest]})
            end = {"index": choice["index"], "text": "", "finish_reason": reason}
        chunks.append(head | {"choices": [end]})
    return _events(chunks)


def _has_choices(body: Mapping[str, Any]) -> bool:
    choices = body.get("choices")
    return (
        isinstance(choices, list | tuple)
        and bool(choices)
        and all(isinstance(each, Mapping) for each in choices)
    )


def _complete(body: Mapping[str, Any], dialect: Dialect, model: str) -> _Object:
    if not _has_choices(body):
        return dict(body)
    chat = dialect is Dialect.CHAT
    required: _Object = {
        "id": "chatcmpl-static" if chat else "cmpl-static",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": model,
    }
    answer = required | dict(body)
    if answer["object"] in {"chat.completion", "text_completion"}:
        answer["object"] = required["object"]
    answer["choices"] = [
        _choice(each, index, chat=chat) for index, each in enumerate(body["choices"])
    ]
    return answer


def _choice(choice: Mapping[str, Any], index: int, *, chat: bool) -> _Object:
    result = {"index": index, **choice}
    result.setdefault("finish_reason", "stop")
    if chat and "message" not in result:
        result["message"] = {"role": "assistant", "content": result.pop("text", "")}
    elif chat:
        result["message"] = {"role": "assistant", **result["message"]}
    elif "text" not in result:
        message = result.pop("message", {})
        result["text"] = message.get("content") or ""
    return result


def _delta(message: Mapping[str, Any]) -> _Object:
    delta = dict(message)
    calls = delta.get("tool_calls")
    if isinstance(calls, list | tuple):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return delta


def _events(chunks: list[_Object]) -> str:
    return "".join(f"data: {_dump(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
