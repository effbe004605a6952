"""A value of a document that was read, with its path: what is wrong with it says where, and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Any, TypeVar

_E = TypeVar("_E", bound=StrEnum)


class Node:
    """One value. Every method raises a ValueError that names the path where the value is not what it asks for."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, value: object) -> None:
        self.path = path
        self.value = value

    def get(self, key: str) -> Node:
        """Return what a mapping has under a key that must be there."""
        value = self._as_mapping()
        if key not in value:
            raise ValueError(f"{self.path}.{key}: missing")
        return Node(f"{self.path}.{key}", value[key])

    def mapping(self) -> dict[str, Node]:
        """Return all that a mapping has, by key."""
        return {
            str(key): Node(f"{self.path}.{key}", value) for key, value in self._as_mapping().items()
        }

    def items(self) -> list[Node]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        return [Node(f"{self.path}[{n}]", value) for n, value in enumerate(self.value)]

    def number(self, *, low: float = float("-inf"), high: float = float("inf")) -> float:
        """Return a finite number within bounds."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong("a number")
        if not isfinite(value) or not low <= value <= high:
            raise self._wrong(f"a finite number from {low} to {high}")
        return float(value)

    def optional_number(
        self, *, low: float = float("-inf"), high: float = float("inf")
    ) -> float | None:
        """Return a finite number within bounds, or None where there is none."""
        return None if self.value is None else self.number(low=low, high=high)

    def integer(self, *, low: int) -> int:
        """Return an integer that is not below a bound."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self._wrong(f"an integer of at least {low}")
        return value

    def optional_integer(self, *, low: int) -> int | None:
        """Return an integer that is not below a bound, or None where there is none."""
        return None if self.value is None else self.integer(low=low)

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def optional_text(self) -> str | None:
        """Return a text, or None where there is none."""
        return None if self.value is None else self.text()

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self._wrong("true or false")
        return self.value

    def choice(self, kind: type[_E]) -> _E:
        """Return one of an enumeration's members."""
        try:
            return kind(self.text())
        except ValueError:
            raise self._wrong("one of " + ", ".join(kind)) from None

    def _as_mapping(self) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            raise self._wrong("a mapping")
        return self.value

    def _wrong(self, expected: str) -> ValueError:
        return ValueError(f"{self.path}: {self.value!r}; expected {expected}")
