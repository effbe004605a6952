"""What the classes of requests mean together: which request is whose, and shares that add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xds_server.config.problems import MISSING, Problem, join
from xds_server.config.values import is_taken

DEFAULT_PREFIX = "/v1/"
"""Of models."""
_RATIOS = ("demand_ratio", "quota_ratio")


def check_classes(classes: Any, models: Any = None) -> Iterator[Problem]:
    """Yield every problem between classes that are each well-formed, and with the tiers of models."""
    tiers = dict(_tiers(models))
    rows = classes if isinstance(classes, list) else []
    known = [(join("classes", index), row) for index, row in enumerate(rows)]
    known = [(path, row) for path, row in known if isinstance(row, dict)]
    names: dict[str, str] = {}
    matches: dict[tuple[Any, ...], str] = {}
    rest: list[str] = []
    for path, row in known:
        name = row.get("name")
        if isinstance(name, str) and names.setdefault(name, path) != path:
            expected = f"a name that no other class has (see {names[name]})"
            yield Problem.of(join(path, "name"), name, expected)
        elif isinstance(name, str) and name in tiers:
            # `explain chat/core` must mean one thing.
            expected = f"a name that no tier has (see {tiers[name]})"
            yield Problem.of(join(path, "name"), name, expected)
        match = row.get("match")
        if match is None:
            rest.append(path)
        elif isinstance(match, dict):
            yield from _check_match(join(path, "match"), match, matches)
    if len(rest) > 1:
        for path in rest[1:]:
            expected = f"a header or a prefix: the rest goes to {rest[0]} already"
            yield Problem.of(join(path, "match"), MISSING, expected)
    elif rows and not rest and len(known) == len(rows):
        yield Problem.of("classes", [*names], "exactly one class without a match, for the rest")
    for ratio in _RATIOS:
        yield from _check_sum(ratio, known)


def doubts(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield what works and is hardly meant: classes that no request can belong to."""
    prefixes = [
        match.get("prefix", DEFAULT_PREFIX) if isinstance(match, dict) else DEFAULT_PREFIX
        for match in (model.get("match") for model in raw["models"])
    ]
    for index, row in enumerate(raw.get("classes") or ()):
        own = (row.get("match") or {}).get("prefix")
        if own is not None and not any(
            own.startswith(prefix) or prefix.startswith(own) for prefix in prefixes
        ):
            at = join(join(join("classes", index), "match"), "prefix")
            shown = ", ".join(dict.fromkeys(prefixes))
            yield Problem.of(at, own, f"a path under a model's prefix ({shown})")


def _tiers(models: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of every tier and where it is."""
    for number, model in enumerate(models if isinstance(models, list) else []):
        listed = model.get("tiers") if isinstance(model, dict) else None
        path = join(join("models", number), "tiers")
        for index, tier in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(tier, dict) and isinstance(tier.get("name"), str):
                yield tier["name"], join(path, index)


def _check_match(
    path: str, match: dict[str, Any], seen: dict[tuple[Any, ...], str]
) -> Iterator[Problem]:
    header, value, prefix = (match.get(key) for key in ("header", "value", "prefix"))
    if header is None and value is not None:
        yield Problem.of(join(path, "header"), MISSING, "the header that has the value")
    elif header is None and prefix is None:
        expected = "a header or a prefix; no match at all for the class that takes the rest"
        yield Problem.of(path, match, expected)
    if isinstance(header, str):
        if is_taken(header):
            expected = "a header that means nothing else to proxies"
            yield Problem.of(join(path, "header"), header, expected)
        header = header.lower()
    key = (header, value, prefix)
    if any(part is not None for part in key) and all(
        part is None or isinstance(part, str) for part in key
    ):
        first = seen.setdefault(key, path)
        if first != path:
            yield Problem.of(path, match, f"a match that no other class has (see {first})")


def _check_sum(ratio: str, known: list[tuple[str, dict[str, Any]]]) -> Iterator[Problem]:
    total = 0.0
    for path, row in known:
        value = row.get(ratio)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        total += value
        if total > 1.0 + 1e-9:
            expected = f"at most {value - (total - 1.0):g}: the classes' shares would be {total:g}"
            yield Problem.of(join(path, ratio), value, expected)
            return
