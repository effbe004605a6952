"""Values of the core as JSON and back: equal, and the same objects where they were the same.

The brain tells by identity what did not change (`plan.models is published`), so a state that is to go on
exactly as the recorded one did must share its parts as that one did. Every object is written once, in a table,
and referred to by its number. Only classes of `xds_server.core` can be read: nothing in a file is executed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from enum import Enum
from typing import Any

from xds_server import core


class CodecError(Exception):
    """The document was not written by this version; the text says what does not fit."""


def encode(value: Any) -> dict[str, Any]:
    """Return a JSON document of a value made of the core's classes, containers and plain values.

    Raises:
        TypeError: Some part of it is nothing of that.
    """
    table = _Table()
    root = table.put(value)
    return {"classes": table.classes, "nodes": table.nodes, "root": root}


def decode(document: Mapping[str, Any]) -> Any:
    """Return the value that `encode` wrote.

    Raises:
        CodecError: It cannot be read by this version.
    """
    try:
        classes = [_class(name, fields) for name, fields in document["classes"]]
        made: list[Any] = []
        for node in document["nodes"]:
            made.append(_make(node, classes, made))
        return _value(document["root"], made)
    except CodecError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"it is not a recorded value: {error!r}") from error


class _Table:
    def __init__(self) -> None:
        self.nodes: list[list[Any]] = []
        self.classes: list[tuple[str, list[str]]] = []
        self._numbers: dict[int, int] = {}
        self._class_numbers: dict[type, int] = {}
        self._alive: list[Any] = []
        """Keeps what was seen, so that no other object gets its id."""

    def put(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        number = self._numbers.get(id(value))
        if number is None:
            node = self._node(value)
            number = self._numbers[id(value)] = len(self.nodes)
            self.nodes.append(node)
            self._alive.append(value)
        return [number]

    def _node(self, value: Any) -> list[Any]:
        kind = type(value)
        if isinstance(value, Enum):
            return ["e", self._number(kind, []), value.value]
        if dataclasses.is_dataclass(value):
            names = [each.name for each in dataclasses.fields(value)]
            parts = [self.put(getattr(value, name)) for name in names]
            return ["d", self._number(kind, names), parts]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            parts = [self.put(each) for each in value]
            return ["d", self._number(kind, list(kind._fields)), parts]
        if isinstance(value, tuple | list):
            return ["t" if isinstance(value, tuple) else "l", [self.put(each) for each in value]]
        if isinstance(value, frozenset):
            return ["s", [self.put(each) for each in sorted(value, key=repr)]]
        if isinstance(value, Mapping):
            return ["m", [[self.put(key), self.put(each)] for key, each in value.items()]]
        raise TypeError(f"cannot record a {kind.__module__}.{kind.__qualname__}")

    def _number(self, kind: type, fields: list[str]) -> int:
        number = self._class_numbers.get(kind)
        if number is None:
            name = _name(kind)
            if _known().get(name) is not kind:
                raise TypeError(f"cannot record a {kind.__module__}.{kind.__qualname__}")
            number = self._class_numbers[kind] = len(self.classes)
            self.classes.append((name, fields))
        return number


def _make(node: Any, classes: list[type], made: list[Any]) -> Any:
    tag, *rest = node
    if tag == "e":
        return classes[rest[0]](rest[1])
    if tag == "d":
        return classes[rest[0]](
            **dict(
                zip(
                    _fields(classes[rest[0]]), [_value(each, made) for each in rest[1]], strict=True
                )
            )
        )
    if tag == "m":
        return {_value(key, made): _value(each, made) for key, each in rest[0]}
    parts = [_value(each, made) for each in rest[0]]
    return {"t": tuple, "l": list, "s": frozenset}[tag](parts)


def _value(value: Any, made: list[Any]) -> Any:
    return made[value[0]] if isinstance(value, list) else value


def _class(name: str, fields: list[str]) -> type:
    found = _known().get(name)
    if found is None or list(_fields(found)) != list(fields):
        raise CodecError(f"it was made by another version, whose {name!r} is not the one here")
    return found


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    return tuple(getattr(kind, "_fields", ()))


def _name(kind: type) -> str:
    return f"{kind.__module__.removeprefix(core.__name__ + '.')}:{kind.__qualname__}"


@functools.cache
def _known() -> dict[str, type]:
    """Every value class of the core by its name."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(core.__path__, f"{core.__name__}."):
        for each in vars(importlib.import_module(module.name)).values():
            if not isinstance(each, type) or each.__module__ != module.name:
                continue
            if dataclasses.is_dataclass(each) or issubclass(each, Enum) or hasattr(each, "_fields"):
                found[_name(each)] = each
    return found
