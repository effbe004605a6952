"""What the answers of a static tier mean together: sizes, names and conditions of templates, who can read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from xds_server.config.problems import MISSING, Problem, join, show

ANSWER_MOST_BYTES = 65_536
"""Of one answer. A proxy keeps every answer four times (chat and text, plain and streamed) in one listener's
configuration, and Envoy's own limit (4096 bytes) is raised to the longest."""
KEYWORDS_MOST = 64
"""Of all templates of an answer: each is searched for in every prompt that comes to the static tier."""
RESERVED = ("default", "unavailable")
"""`x-static-template` of the answer itself, and of the error on paths without one."""
_KINDS = ("keywords", "classes", "languages")


def check_answer(path: str, answer: Any, classes: frozenset[str]) -> Iterator[Problem]:
    """Yield every problem of a static tier's answer.

    Args:
        path: Of the answer.
        answer: As it was written.
        classes: The names of the classes of requests.
    """
    if not isinstance(answer, dict):
        return
    yield from _check_json(path, answer)
    names: dict[str, str] = {}
    count = 0
    for where, template in _templates(path, answer):
        yield from _check_json(where, template)
        name = template.get("name")
        if isinstance(name, str):
            if name in RESERVED:
                expected = f"another name: {' and '.join(RESERVED)} mean something already"
                yield Problem.of(join(where, "name"), name, expected)
            elif names.setdefault(name, where) != where:
                expected = f"a name that no other template of this answer has (see {names[name]})"
                yield Problem.of(join(where, "name"), name, expected)
        when = template.get("when")
        if isinstance(when, dict):
            yield from _check_when(join(where, "when"), when, classes)
            count += len(_list(when.get("keywords")))
    if count > KEYWORDS_MOST:
        expected = f"at most {KEYWORDS_MOST} keywords, all templates together"
        yield Problem(join(path, "templates"), f"{count} keywords", expected)


def doubts(path: str, answer: Any) -> Iterator[Problem]:
    """Yield what works and is hardly meant in an answer without problems."""
    for where, each in [(path, answer), *_templates(path, answer)]:
        body = each["json"]
        if not _can_be_read(body):
            expected = "choices, or an error: OpenAI's clients can read nothing else"
            yield Problem.of(join(where, "json"), body, expected)
        if each.get("status") in (429, 503) and each.get("retry_after_s") is None:
            expected = (
                f"a time, with status {each['status']}: clients come back at once without one"
            )
            yield Problem.of(join(where, "retry_after_s"), MISSING, expected)


def _check_json(path: str, answer: dict[str, Any]) -> Iterator[Problem]:
    yield from _check_size(path, answer)
    body = answer.get("json")
    choices = _list(body.get("choices")) if isinstance(body, dict) else []
    if not all(isinstance(each, dict) for each in choices):
        return  # then it is no completion, and sent as it is
    for index, choice in enumerate(choices):
        at = join(join(join(join(path, "json"), "choices"), index), "message")
        message = choice.get("message", {})
        if not isinstance(message, dict):
            yield Problem.of(at, message, "a mapping, like {content: ...}")
            continue
        calls = message.get("tool_calls")
        for number, call in enumerate(_list(calls)):
            if not isinstance(call, dict):
                where = join(join(at, "tool_calls"), number)
                yield Problem.of(where, call, "a mapping: a call of a function")


def _check_size(path: str, answer: dict[str, Any]) -> Iterator[Problem]:
    try:
        size = len(
            json.dumps(
                answer.get("json"), ensure_ascii=False, separators=(",", ":"), allow_nan=False
            ).encode()
        )
    except (TypeError, ValueError):
        expected = (
            "values that JSON has: no dates, no binaries, no .nan or .inf, keys that are text"
        )
        yield Problem(join(path, "json"), show(answer.get("json")), expected)
        return
    if size > ANSWER_MOST_BYTES:
        expected = f"at most {ANSWER_MOST_BYTES} bytes as JSON"
        yield Problem(join(path, "json"), f"{size} bytes", expected)


def _check_when(path: str, when: dict[str, Any], classes: frozenset[str]) -> Iterator[Problem]:
    if not any(when.get(kind) for kind in _KINDS):
        expected = (
            f"at least one of {', '.join(_KINDS)}: the answer itself is for all other requests"
        )
        yield Problem.of(path, when, expected)
    for index, name in enumerate(_list(when.get("classes"))):
        if isinstance(name, str) and name not in classes:
            known = f"one of the classes: {', '.join(sorted(classes))}"
            expected = known if classes else "a class: there are none (key classes)"
            yield Problem.of(join(join(path, "classes"), index), name, expected)


def _templates(path: str, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, each in enumerate(_list(answer.get("templates"))):
        if isinstance(each, dict):
            yield join(join(path, "templates"), index), each


def _can_be_read(body: Any) -> bool:
    choices = body.get("choices")
    if isinstance(choices, list) and choices and all(isinstance(each, dict) for each in choices):
        return True
    return isinstance(body.get("error"), dict)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
