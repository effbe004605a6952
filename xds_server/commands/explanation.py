"""An explanation (`/debug/explain`) as sentences for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_INDENT = "  "


def fitted(text: str, width: int) -> str:
    """Break lines between words so that they fit a terminal; what goes on is set in under its beginning."""
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip())) + _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def told(answer: Mapping[str, Any]) -> str:
    """Write an explanation of a model, a tier or an instance in a few lines.

    Args:
        answer: What `xds_server.core.explain.explain` returned, also by way of JSON.

    Returns:
        Lines without an end of line after the last: the sentence, how the weight came about, what would change it,
        and one line for each part.
    """
    return "\n".join(_lines(answer))


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"{answer['subject']}{_state(answer)}: {answer['sentence']}"
    if "calculation" in answer:
        yield f"{_INDENT}{answer['calculation']}"
    if "note" in answer:
        yield f"{_INDENT}{answer['note']}"
    yield f"{_INDENT}What changes it: {answer['changes_when']}"
    for tier in answer.get("tiers", ()):
        yield ""
        yield from _lines(tier)
    for request_class in answer.get("classes", ()):
        yield ""
        yield from _lines(request_class)
    for instance in answer.get("instances", ()):
        yield f"{_INDENT}{instance['id']}: {instance['state']}, weight {instance['weight']} ({instance['rule']})"


def _state(answer: Mapping[str, Any]) -> str:
    """What it is in: a tier's level with its pressure, an instance's state with its telemetry."""
    words = []
    if "level" in answer:
        words.append(str(answer["level"]))
    if "state" in answer:
        words += [str(answer["state"]), f"telemetry {answer['telemetry']}"]
    if answer.get("pressure") is not None:
        words.append(f"pressure {answer['pressure']:.0%}")
    return f" ({', '.join(words)})" if words else ""
