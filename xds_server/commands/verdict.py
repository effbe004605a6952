"""The fleet in one line: the worst that is true now, as the live page says it (`verdict.js`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from xds_server.commands.asking import clean

_OUT = ("down", "quarantined")
_RETURNING = ("recovering", "warming")
_NAMED = 3
"""Names in one clause; of more, their number is said."""
_SIGNS = ("●", "▲", "✕")
_STYLES = ("bold green", "bold yellow", "bold red")


def verdict(found: Mapping[str, Any]) -> Text:
    """Write what `status` found in one line, the worst first."""
    troubles = sorted(_troubles(found), key=lambda each: -each[0])
    level = troubles[0][0] if troubles else 0
    said = " · ".join(text for _, text in troubles) or _calm(found)
    return Text(f"{_SIGNS[level]} {clean(said)}", style=_STYLES[level])


def _troubles(found: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield how bad (1 or 2) and what."""
    instances = list(_instances(found))
    if not found["warm"]:
        why = found["not_ready"] or "it waits for telemetry"
        yield 2, f"proxies are not answered yet: {why}"
    yield from _named(instances, _OUT, "down", 2)
    for model in found["models"]:
        for tier in model["tiers"]:
            name, level = f"{model['model']}/{tier['tier']}", tier["level"]
            passes = f"passes on {tier['spill']:.0%}" if tier["spill"] > 0 else ""
            if tier["rule"] == "forced":
                if tier["weight"] == tier["of"]:
                    yield 1, f"{name} is forced"
            elif level != "healthy":
                said = f"{name} {level}" + (f", {passes}" if passes else "")
                yield (2 if level == "critical" else 1), said
            elif passes:
                yield 1, f"{name} {passes}"
    proxies = found["proxies"]
    if proxies["refusing"]:
        first, more = proxies["refusing_first"], proxies["refusing"]
        who = ", ".join(first) if more <= len(first) else f"{more} proxies"
        yield 2, f"{who} refuse{'s' if more == 1 else ''} the configuration"
    yield from _named(instances, _RETURNING, "returning", 1)
    yield from _named(instances, ("draining",), "draining", 1)
    silent = [each["instance"] for each in instances if each["telemetry"] != "fresh"]
    if silent:
        yield 1, f"{_list(silent)} not heard of"
    if not found["config_valid"]:
        yield 1, "the changed configuration is refused, the last good one serves"
    if found["history_trouble"]:
        yield 1, f"history: {found['history_trouble']}"


def _calm(found: Mapping[str, Any]) -> str:
    if not found["models"]:
        return "there is no plan yet"
    count, proxies = sum(1 for _ in _instances(found)), found["proxies"]["connected"]
    return f"all well: {_number(count, 'instance')}, {_number(proxies, 'proxy', 'proxies')}"


def _named(
    instances: Sequence[Mapping[str, Any]], states: Sequence[str], what: str, level: int
) -> Iterator[tuple[int, str]]:
    names = [each["instance"] for each in instances if each["state"] in states]
    if names:
        yield level, f"{_list(names)} {what}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else str(len(names))


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _instances(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (i for m in found["models"] for t in m["tiers"] for i in t["instances"])
