"""What a request's body says, and what it becomes for the tier that gets it.

The same rules that proxies follow (docs/requests.md): only the top level of a JSON object counts, every occurrence
of a key is rewritten, of a key written twice the last one counts, and every other byte stays as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecoder

from xds_server.core.model import MaxTokens

MODEL = "model"
LIMITS = ("max_completion_tokens", "max_tokens")
_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\n\r]*")
_QUOTED = re.compile(r"\s*([+-]?\d[\d_]*)(\.0*)?\s*", re.ASCII)
_MOST_DIGITS = 300


class _Number(str):
    """A number as it is written: nothing is lost, and a million digits cost nothing."""

    __slots__ = ()


_DECODER = JSONDecoder(strict=False, parse_int=_Number, parse_float=_Number)
_QUICK = JSONDecoder(strict=False)
"""For what nobody looks into: a prompt of half a million token numbers takes a tenth of the time."""


class UnreadableError(ValueError):
    """A body that is no JSON object, or whose model is no string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What bodies become for a tier."""

    model: str | None = None
    """The name its engines answer to; None = the client's stays."""
    max_tokens: MaxTokens | None = None
    """How answers are shortened; None = not."""


AS_IT_IS = Rewrite()


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    value: object
    start: int
    end: int


class Body:
    """The members of a JSON object's top level, and where they are written."""

    __slots__ = ("_bom", "_members", "_opening", "_text")

    def __init__(self, raw: bytes) -> None:
        """Read a body.

        Raises:
            UnreadableError: It is not one JSON object.
        """
        self._bom = _BOM if raw.startswith(_BOM) else b""
        self._text = raw[len(self._bom) :].decode("utf-8", "surrogateescape")
        self._opening = _after_space(self._text, 0)
        try:
            self._members = tuple(_members(self._text, self._opening))
        except (ValueError, RecursionError) as error:
            raise UnreadableError(str(error)) from None

    @property
    def model(self) -> str | None:
        """The model that is asked for; None = none is named, or by something that is no string."""
        for each in reversed(self._members):
            if each.key == MODEL:
                value = each.value
                return value if isinstance(value, str) and not isinstance(value, _Number) else None
        return None

    def rewritten(self, rewrite: Rewrite, *, completes: bool) -> bytes:
        """Return the bytes that a tier's engines shall read.

        Args:
            rewrite: What the tier wants.
            completes: The request is a completion, so that `when_absent` applies.

        Raises:
            UnreadableError: The model is named by something that is no string.
        """
        edits: dict[int, tuple[int, str]] = {}
        if rewrite.model is not None:
            for each in self._members:
                if each.key == MODEL:
                    if isinstance(each.value, _Number) or not isinstance(each.value, str):
                        raise UnreadableError("model: expected a string")
                    edits[each.start] = each.end, json.dumps(rewrite.model)
        if rewrite.max_tokens is not None:
            edits |= self._shortened(rewrite.max_tokens, completes=completes)
        text = self._text
        for start, (end, instead) in sorted(edits.items(), reverse=True):
            text = text[:start] + instead + text[end:]
        return self._bom + text.encode("utf-8", "surrogateescape")

    def _shortened(self, short: MaxTokens, *, completes: bool) -> dict[int, tuple[int, str]]:
        edits: dict[int, tuple[int, str]] = {}
        last = {each.key: each for each in self._members if each.key in LIMITS}
        fills = completes and short.when_absent is not None
        is_absent = not any(_states_limit(each.value) for each in last.values())
        for each in self._members:
            if each.key not in LIMITS:
                continue
            asked = _asked(each.value)
            if asked is not None and asked >= 0:
                most = max(short.floor, _scaled(asked, short.scale))
                if most < asked:
                    edits[each.start] = each.end, str(most)
            elif fills and is_absent and not _states_limit(each.value):
                edits[each.start] = each.end, str(short.when_absent)
        if fills and not last:
            at = self._opening + 1
            edits[at] = at, f'"max_tokens":{short.when_absent}{"," if self._members else ""}'
        return edits


def _members(text: str, at: int) -> Iterator[_Member]:
    if text[at : at + 1] != "{":
        raise ValueError("expected a JSON object")
    at = _after_space(text, at + 1)
    is_first = True
    while not (is_first and text[at : at + 1] == "}"):
        if text[at : at + 1] != '"':
            raise ValueError("expected a key")
        key, at = _DECODER.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("expected a colon")
        start = _after_space(text, at + 1)
        value, at = _value(text, start)
        yield _Member(key, value, start, at)
        is_first = False
        at = _after_space(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("expected a comma")
        at = _after_space(text, at + 1)
    if _after_space(text, at + 1) != len(text):
        raise ValueError("expected one value only")


def _value(text: str, at: int) -> tuple[object, int]:
    if text[at : at + 1] in ("[", "{"):
        try:
            return _QUICK.raw_decode(text, at)
        except ValueError:
            pass  # Python converts no number of more than 4,300 digits; who reads on says what is wrong.
    return _DECODER.raw_decode(text, at)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _asked(value: object) -> int | None:
    """Return the whole number that a value is, also where it is in quotes, as engines in Python take it."""
    text: str | None = value if isinstance(value, _Number) else None
    if text is None and isinstance(value, str):
        match = _QUOTED.fullmatch(value)
        text = match[1].replace("_", "") if match else None
    if text is None or len(text) > _MOST_DIGITS:
        return None
    if text.lstrip("+-").isdigit():
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() else None


def _scaled(asked: int, scale: float) -> int:
    """Return `scale` of a number, rounded down; 0.7 of 10 is 7, though a double says 6.99."""
    return int(asked * scale + 1e-9)


def _states_limit(value: object) -> bool:
    """Whether a value is a limit, or something that engines refuse."""
    if value is None:
        return False
    asked = _asked(value)
    return asked is None or asked >= 0
