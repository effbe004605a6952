"""What a body must become, written without a look at the Lua: Python's own decoder finds the values.

`expected` is slow and says what is right; the proxy is fast and has to agree.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from json.decoder import JSONDecoder, scanstring
from typing import Any

BOM = b"\xef\xbb\xbf"
LIMITS = ("max_completion_tokens", "max_tokens")
_SPACE = re.compile(r"[ \t\n\r]*")
_QUOTED = re.compile(r"\s*([+-]?\d[\d_]*)(\.0*)?\s*", re.ASCII)


class Number(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER = JSONDecoder(strict=False, parse_int=Number, parse_float=Number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a tier wants of bodies."""

    serves: str | None = None
    scale: str | None = None
    floor: int = 16
    when_absent: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One key of the top-level object, its value, and where the value is written."""

    key: str
    value: Any
    start: int
    end: int


def members(text: str) -> tuple[int, list[Member]]:
    """Return where the object begins, and its members in order.

    Raises:
        ValueError: the text is not one JSON object.
    """
    at = opening = _after_space(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    found: list[Member] = []
    at = _after_space(text, at + 1)
    while text[at : at + 1] != "}" or found:
        if text[at : at + 1] != '"':
            raise ValueError("no key")
        key, at = scanstring(text, at + 1, False)
        at = _after_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        start = _after_space(text, at + 1)
        value, at = _DECODER.raw_decode(text, start)
        found.append(Member(key, value, start, at))
        at = _after_space(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _after_space(text, at + 1)
    if _after_space(text, at + 1) != len(text):
        raise ValueError("more than one value")
    return opening, found


def expected(body: bytes, rules: Rules, *, completes: bool = True) -> bytes | None:
    """Return what the engine must get, or None where the body cannot be rewritten."""
    text = body.removeprefix(BOM).decode("utf-8", "surrogateescape")
    try:
        opening, found = members(text)
    except (ValueError, RecursionError):
        return None
    edits: dict[int, tuple[int, str]] = {}
    limits = {each.key: each for each in found if each.key in LIMITS}
    absent = not any(_states_limit(each.value) for each in limits.values())
    for each in found:
        if each.key == "model" and rules.serves is not None:
            if isinstance(each.value, Number) or not isinstance(each.value, str):
                return None
            edits[each.start] = each.end, json.dumps(rules.serves)
        if each.key in LIMITS and rules.scale is not None:
            asked = _asked(each.value)
            if asked is not None and asked >= 0:
                most = max(rules.floor, _scaled(asked, rules.scale))
                if most < asked:
                    edits[each.start] = each.end, str(most)
            elif absent and completes and rules.when_absent and not _states_limit(each.value):
                edits[each.start] = each.end, str(rules.when_absent)
    fills = rules.scale is not None and rules.when_absent and completes
    if fills and not limits:
        comma = "," if found else ""
        edits[opening + 1] = opening + 1, f'"max_tokens":{rules.when_absent}{comma}'
    for start, (end, instead) in sorted(edits.items(), reverse=True):
        text = text[:start] + instead + text[end:]
    head = BOM if body.startswith(BOM) else b""
    return head + text.encode("utf-8", "surrogateescape")


def _asked(value: Any) -> int | None:
    """Return the whole number that a value is, also where it is in quotes as Python's engines take it."""
    text: str | None = value if isinstance(value, Number) else None
    if isinstance(value, str) and not isinstance(value, Number):
        match = _QUOTED.fullmatch(value)
        text = match[1].replace("_", "") if match else None
    if text is None or len(text) > 300:
        return None
    try:  # what is no plain integer is a double to every reader, with a double's precision
        number = Fraction(int(text) if text.lstrip("+-").isdigit() else float(text))
    except (ValueError, OverflowError):
        return None
    if number.denominator != 1 or number > 10**300:
        return None
    return int(number)


def _scaled(asked: int, scale: str) -> int:
    if asked > 10**9:  # as exact as a double, which is what every number is to Lua
        return int(float(asked) * float(scale) + 1e-9)
    return int(Fraction(scale) * asked // 1)


def _states_limit(value: Any) -> bool:
    """Whether a value is a limit, or something that engines refuse."""
    if value is None:
        return False
    asked = _asked(value)
    return asked is None or asked >= 0


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match
    return match.end()
