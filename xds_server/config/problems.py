"""What is wrong with a configuration: all of it at once, each with path, value and expectation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MISSING = object()
"""Stands for a value that is not there."""

_SHOWN_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend: where it is, what is there, what was expected."""

    path: str
    value: str
    expected: str

    @classmethod
    def of(cls, path: str, value: Any, expected: str) -> Problem:
        """Make a problem from the value as it was written; `MISSING` where there is none."""
        return cls(path or "(file)", show(value), expected)

    def __str__(self) -> str:
        return f"{self.path}: {self.value}: expected {self.expected}"


class ConfigError(Exception):
    """A configuration that cannot be used. `problems` is never empty."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{source}: {count} problem{'' if count == 1 else 's'}"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


def show(value: Any) -> str:
    """Write a value on one short line, as it would look in the file."""
    if value is MISSING:
        return "(missing)"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."


def join(path: str, part: str | int) -> str:
    """Extend a path by a key or an index: `models[0].tiers`."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part
