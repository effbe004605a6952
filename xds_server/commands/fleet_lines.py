"""The fleet as lines that fit a terminal: a row per tier, instance and class, and why beside or below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from xds_server.commands.asking import clean, percent, seconds

COLORS = {
    "healthy": "green",
    "degraded": "yellow",
    "critical": "bold red",
    "warming": "yellow",
    "recovering": "yellow",
    "draining": "magenta",
    "down": "bold red",
    "quarantined": "bold red",
}
MANY = 12
"""Of more instances of a tier only those are shown that somebody must look at."""
_HEADS = ("", "state", "share", "pressure", "ceiling", "age")
_LEFT = {0, 1}
_GAP = "  "
_LEAST_WHY = 50
"""Columns that a sentence needs beside a row; with fewer it goes below."""
_LEAST_NAME = 12
_BELOW = 6
_UNBROKEN = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """One row."""

    cells: tuple[Text, ...]
    why: str = ""
    following: str = ""
    """What would change it; empty = it is as it should be."""


def lines(
    found: Mapping[str, Any], *, width: int | None, everything: bool, is_old: bool = False
) -> Iterator[Text]:
    """Write all models.

    Args:
        found: What the server says.
        width: Columns of the terminal; None = each row is one line, however long.
        everything: Every instance, also the many that are as they should be.
        is_old: It is not the present any more.
    """
    for model in found["models"]:
        rows = list(_rows(model, found["stale_s"], everything=everything))
        for text in _table(clean(model["model"]), rows, width):
            if is_old:
                text.stylize("dim")
            yield text


def _rows(model: Mapping[str, Any], stale_s: float, *, everything: bool) -> Iterator[Line]:
    for tier in model["tiers"]:
        cells = (
            Text(f"  {clean(tier['tier'])}", style="bold"),
            _state(tier["level"]),
            Text(f"{tier['weight'] / tier['of']:.1%}", style="bold"),
            Text(percent(tier["pressure"])),
            Text(),
            Text(),
        )
        following = tier["changes_when"] if tier["spill"] > 0 or tier["rule"] == "forced" else ""
        yield Line(cells, _why(tier), following)
        instances = tier["instances"]
        is_short = len(instances) > MANY and not everything
        ordinary = [each for each in instances if is_short and _is_ordinary(each, stale_s)]
        shown = [each for each in instances if not (is_short and _is_ordinary(each, stale_s))]
        yield from (_instance(each, stale_s) for each in shown)
        if ordinary:
            yield Line((Text(f"    {len(ordinary)} more", style="dim"), *_sum(ordinary)))
    for each in model["classes"]:
        yield _class(each)


def _instance(each: Mapping[str, Any], stale_s: float) -> Line:
    age_s, telemetry = each["age_s"], each["telemetry"]
    is_old = age_s is None or age_s > stale_s
    cells = (
        Text(f"    {clean(each['instance'])}"),
        _state(each["state"]),
        Text(f"{each['share']:.1%}"),
        Text(percent(each["pressure"])),
        Text(percent(each["ceiling"]), style="" if each["ceiling"] == 1 else "yellow"),
        Text("never" if age_s is None else seconds(age_s), style="bold yellow" if is_old else ""),
    )
    is_calm = _is_ordinary(each, stale_s)
    told = _why(each)
    if telemetry != "fresh" and "telemetry" not in told:
        told = f"Its telemetry is not fresh. {told}"
    if each["state"] == "draining" and each["running"] is not None:
        told = (
            f"It still runs {each['running']:g}. {told}"
            if each["running"]
            else f"It is empty. {told}"
        )
    return Line(cells, told, "" if is_calm else each["changes_when"])


def _class(each: Mapping[str, Any]) -> Line:
    state = "rejected" if each["is_rejected"] else "shed" if each["is_shed"] else "served"
    shares = ", ".join(f"{tier} {w / each['of']:.1%}" for tier, w in each["weights"].items() if w)
    cells = (
        Text(f"  class {clean(each['class'])}"),
        Text(state, style="green" if state == "served" else "bold red"),
        Text(f"{each['demand_ratio']:.1%}"),
        *(Text(),) * 3,
    )
    return Line(cells, f"{clean(shares)}: {_why(each)}")


def _sum(instances: Sequence[Mapping[str, Any]]) -> tuple[Text, ...]:
    """Write what many instances that are as they should be have in common."""
    oldest = max(each["age_s"] for each in instances)
    pressures = [each["pressure"] for each in instances if each["pressure"] is not None]
    shown = "-" if not pressures else _span(min(pressures), max(pressures))
    return (
        _state("healthy"),
        Text(f"{sum(each['share'] for each in instances):.1%}"),
        Text(shown),
        Text("100%"),
        Text(f"≤{seconds(oldest)}"),
    )


def _span(least: float, most: float) -> str:
    least_text, most_text = f"{least:.0%}", f"{most:.0%}"
    return most_text if least_text == most_text else f"{least_text[:-1]}-{most_text}"


def _is_ordinary(each: Mapping[str, Any], stale_s: float) -> bool:
    return bool(
        each["state"] == "healthy"
        and each["telemetry"] == "fresh"
        and each["ceiling"] == 1
        and each["age_s"] is not None
        and each["age_s"] <= stale_s
    )


def _table(title: str, rows: Sequence[Line], width: int | None) -> Iterator[Text]:
    heads = tuple(Text(name, style="dim") for name in _HEADS)
    spans = [max(cell_len(r[i].plain) for r in (heads, *(x.cells for x in rows))) for i in range(6)]
    others = sum(spans[1:]) + len(_GAP) * 5
    spans[0] = max(spans[0], cell_len(title))
    if width is not None and spans[0] + others > width:
        spans[0] = max(_LEAST_NAME, width - others)
    beside = _UNBROKEN if width is None else width - spans[0] - others - len(_GAP)
    is_beside = beside >= _LEAST_WHY
    head = _row((Text(title, style="bold underline"), *heads[1:]), spans)
    if is_beside:
        head.append(f"{_GAP}why", style="dim")
    yield head
    for line in rows:
        row = _row(line.cells, spans)
        if width is None:
            following = f"{_GAP}Next: {line.following}" if line.following else ""
            yield row.append(f"{_GAP}{line.why}{following}".rstrip())
            continue
        said = list(_said(line, beside if is_beside else width - _BELOW))
        if is_beside:
            indent = " " * (sum(spans) + len(_GAP) * 6)
            for index, (text, style) in enumerate(said):
                row.append(_GAP if index == 0 else f"\n{indent}")
                row.append(text, style=style)
        elif line.following or not line.cells[0].plain.startswith("    "):
            for text, style in said:
                row.append(f"\n{' ' * _BELOW}")
                row.append(text, style=style)
        yield row
    yield Text()


def _said(line: Line, columns: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of a sentence and of what comes next, with their style."""
    for text in _wrapped(line.why, columns):
        yield text, ""
    if line.following:
        for text in _wrapped(f"Next: {line.following}", columns):
            yield text, "cyan"


def _wrapped(text: str, columns: int) -> Iterator[str]:
    now = ""
    for word in text.split():
        if now and cell_len(now) + 1 + cell_len(word) > columns:
            yield now
            now = word
        else:
            now = f"{now} {word}" if now else word
        while cell_len(now) > columns:
            yield set_cell_size(now, columns).rstrip()
            now = now[len(set_cell_size(now, columns).rstrip()) :]
    if now:
        yield now


def _row(cells: Sequence[Text], spans: Sequence[int]) -> Text:
    row = Text()
    for index, (cell, span) in enumerate(zip(cells, spans, strict=True)):
        text = _shortened(cell.plain, span)
        pad = " " * (span - cell_len(text))
        row.append(_GAP if index else "")
        if index in _LEFT:
            row.append(text, style=cell.style).append(pad)
        else:
            row.append(pad).append(text, style=cell.style)
    return row


def _shortened(text: str, span: int) -> str:
    """Cut the middle out: what tells names apart is mostly at their end."""
    if cell_len(text) <= span:
        return text
    tail = text[-((span - 1) // 2) :]
    head = set_cell_size(text, max(0, span - 1 - cell_len(tail)))
    return f"{head}…{tail}"


def _why(part: Mapping[str, Any]) -> str:
    return clean(f"{part['sentence']} ({part['rule']})")


def _state(word: str) -> Text:
    return Text(word, style=COLORS.get(word, ""))
