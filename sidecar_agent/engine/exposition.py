"""Prometheus text exposition: a strict, bounded subset, filtered by name before anything is parsed.

An engine's page is 50-80 KB, nearly all of it histogram buckets nobody asked for, and it is read twice
a second per instance. So a line costs one name look-up unless its name is wanted. Exact sample names
are matched (`vllm:generation_tokens_total`, never a family prefix), which also keeps
`vllm:iteration_tokens_total`, a histogram in spite of its name, out.

Not supported on purpose: quoted UTF-8 metric names and OpenMetrics exemplars on wanted lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_SERIES: Final = 4096
"""Wanted series of one page; more is not an engine's page and the rest is counted as malformed."""

_VALUE: Final = re.compile(
    r"(?P<value>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[Ii]nf|[Nn]a[Nn]))"
    r"(?:[ \t]+-?\d+(?:\.\d+)?)?[ \t]*\r?"
)
_LABEL: Final = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,?)'
)
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Series:
    """One sample line: labels and value; the value may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted series of one page, by exact sample name."""

    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    malformed: int = 0
    """Lines of wanted names that could not be read."""
    incomplete: frozenset[str] = frozenset()
    """Names of such lines: what is here of them is a part."""

    def __getitem__(self, name: str) -> tuple[Series, ...]:
        """Return the series of `name`, or an empty tuple."""
        return self.series.get(name, ())

    def first_of(self, names: Iterable[str]) -> tuple[Series, ...]:
        """Return the series of the first name that has any: an ordered list of aliases."""
        for name in names:
            if found := self.series.get(name):
                return found
        return ()

    def __bool__(self) -> bool:
        return bool(self.series)


def parse(text: str, names: Collection[str]) -> Page:
    """Read the lines of `text` whose exact sample name is in `names`.

    A wanted line that is malformed is counted and skipped; it never hides the others.
    """
    found: dict[str, list[Series]] = {}
    malformed = count = 0
    incomplete: set[str] = set()
    for name, rest in _wanted(text, names):
        series = _series(rest)
        if series is None or count >= MAX_SERIES:
            malformed += 1
            incomplete.add(name)
            continue
        count += 1
        found.setdefault(name, []).append(series)
    read = {name: tuple(series) for name, series in found.items()}
    return Page(read, malformed, frozenset(incomplete))


def _wanted(text: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        end = line.find("{")
        if end < 0:
            end = line.find(" ")
            if end < 0:
                continue
        name = line[:end]
        if name in names:
            yield name, line[end:]
        elif (plain := name.partition(" ")[0]) in names:  # `name {a="b"} 1`, or an exemplar's brace
            yield plain, line[len(plain) :].lstrip(" \t")


def _series(rest: str) -> Series | None:
    labels: dict[str, str] = {}
    at = 0
    if rest.startswith("{"):
        at = 1
        while match := _LABEL.match(rest, at):
            name, value, comma = match.groups()
            labels[name] = _unescape(value)
            at = match.end()
            if not comma:
                break
        while at < len(rest) and rest[at] in " \t":
            at += 1
        if not rest.startswith("}", at):
            return None
        at += 1
    matched = _VALUE.fullmatch(rest, _skip_blanks(rest, at))
    return Series(labels, float(matched["value"])) if matched else None


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), value)
