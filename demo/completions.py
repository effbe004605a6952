"""OpenAI-style request and response bodies, as vLLM reads and writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_MAX_TOKENS = 16
CHARS_PER_TOKEN = 4
"""The usual rule of thumb for English text."""

_WORDS = ("so", "the", "queue", "grew", "and", "a", "small", "model", "took", "over", "until", "it")


class RequestError(Exception):
    """A request that an engine refuses; `status` and the error object say why."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """Return the error object in vLLM's nesting."""
        return error_body(self.status, self.kind, str(self))


def error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    """Return an OpenAI-style error object."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What a client asks for."""

    chat: bool
    """Through /v1/chat/completions."""
    model: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    """A stream ends with a chunk of token counts."""


def parse_request(raw: bytes, *, chat: bool) -> CompletionRequest:
    """Read a request body.

    Raises:
        RequestError: what is wrong, with the status an engine would answer.
    """
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise _bad(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _bad(f"the body is {type(body).__name__}; expected an object")
    max_tokens = body.get("max_completion_tokens", body.get("max_tokens", DEFAULT_MAX_TOKENS))
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise _bad(f"max_tokens is {max_tokens!r}; expected a whole number of at least 1")
    options = body.get("stream_options")
    return CompletionRequest(
        chat=chat,
        model=str(body.get("model", "")),
        prompt_tokens=_chat_tokens(body) if chat else _prompt_tokens(body),
        max_tokens=max_tokens,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _chat_tokens(body: Mapping[str, Any]) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages is missing or empty; expected a list of messages")
    if not all(isinstance(each, dict) for each in messages):
        raise _bad("messages holds something else than objects")
    return sum(_text_tokens(str(each.get("content", ""))) for each in messages)


def _prompt_tokens(body: Mapping[str, Any]) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(each, int) for each in prompt):
        return len(prompt)
    if isinstance(prompt, str) and prompt:
        return _text_tokens(prompt)
    raise _bad("prompt is missing or empty; expected text or token ids")


def _text_tokens(text: str) -> int:
    return max(1, math.ceil(len(text) / CHARS_PER_TOKEN))


def _bad(message: str) -> RequestError:
    return RequestError(400, "BadRequestError", message)


def text_of(first: int, count: int) -> str:
    """Return the words of tokens `first` to `first + count - 1` of an answer."""
    return "".join(f"{_WORDS[index % len(_WORDS)]} " for index in range(first, first + count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The shapes of one answer: whole, or as server-sent events."""

    id: str
    created_unix_s: int
    request: CompletionRequest

    def whole(self, generated: int) -> dict[str, Any]:
        """Return the body of a plain response."""
        text = text_of(0, generated)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if self.request.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._envelope([choice], chunk=False) | {"usage": self._usage(generated)}

    def opening(self) -> bytes:
        """Return the event before the first token: chat streams name the role first."""
        if not self.request.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return event(self._envelope([choice], chunk=True))

    def chunk(self, first: int, count: int, *, last: bool) -> bytes:
        """Return the event that carries `count` tokens after the first `first`."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        if self.request.chat:
            choice["delta"] = {"content": text_of(first, count)}
        else:
            choice["text"] = text_of(first, count)
        return event(self._envelope([choice], chunk=True))

    def closing(self, generated: int) -> bytes:
        """Return what follows the last token."""
        if not self.request.include_usage:
            return DONE
        usage = self._envelope([], chunk=True) | {"usage": self._usage(generated)}
        return event(usage) + DONE

    def _envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.request.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_unix_s,
            "model": self.request.model,
            "choices": choices,
        }

    def _usage(self, generated: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.request.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.request.prompt_tokens + generated,
        }


def event(body: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""How every stream that was not cut ends."""
