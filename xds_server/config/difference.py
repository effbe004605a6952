"""What is different between two configurations, in words for the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from xds_server.config.config import Config
from xds_server.config.problems import join, show

MOST = 20
"""Differences in one log line."""


def differences(before: Config, after: Config) -> list[str]:
    """Return one line per value that differs, with its path: `policy.kv.high: 0.85 -> 0.9`.

    Models, tiers and instances are told apart by their names, so that one that is added or taken out is one line.
    Of many lines the first `MOST` are given, and how many more there are.
    """
    lines = [
        *_values("", _Parts(before.topology), _Parts(after.topology)),
        *_values("policy", _Parts(before.policy), _Parts(after.policy)),
        *_values("server", before.server, after.server),
        *_values("istio", _istio(before), _istio(after)),
    ]
    more = len(lines) - MOST
    return [*lines[:MOST], f"and {more} more"] if more > 0 else lines


def _istio(config: Config) -> dict[str, Any]:
    """Return the section with its models by name."""
    if config.istio is None:
        return {}
    section = config.istio.model_dump(exclude_none=True)
    return {**section, "models": {each["model"]: each for each in section["models"]}}


class _Parts(dict[str, Any]):
    """The fields of a value by name."""

    def __init__(self, value: Any) -> None:
        super().__init__(
            {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        )


def _values(path: str, before: Any, after: Any) -> Iterator[str]:
    before, after = _opened(before), _opened(after)
    if before == after:
        if isinstance(before, Mapping) and list(before) != list(after):
            yield f"{path}: in another order"
        return
    if not before and isinstance(after, Mapping):
        before = {} if before == () else before
    if not after and isinstance(before, Mapping):
        after = {} if after == () else after
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        yield f"{path}: {_shown(before)} -> {_shown(after)}"
        return
    for key in [*before, *(key for key in after if key not in before)]:
        where = join(path, key)
        if key not in after:
            yield f"{where}: taken out"
        elif key not in before:
            added = _opened(after[key])
            yield f"{where}: added" if isinstance(added, Mapping) else f"{where}: {_shown(added)}"
        else:
            yield from _values(where, before[key], after[key])


def _opened(value: Any) -> Any:
    """Return values that have parts as a mapping of them; lists of named things by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _Parts(value)
    if isinstance(value, tuple) and value:
        names = [getattr(each, "name", getattr(each, "id", None)) for each in value]
        if None not in names:
            return dict(zip(names, value, strict=True))
    return value


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "nothing"
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return show(list(value) if isinstance(value, tuple) else value)
