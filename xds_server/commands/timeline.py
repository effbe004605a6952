"""Events as lines for people: colored columns that fit a terminal, plain lines elsewhere. Times are in UTC, as everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from xds_server.store.incident import because, change, where
from xds_server.store.moments import show_moment

_BAD = (
    "_down",
    "_lost",
    "_killed",
    "_refused",
    "_failed",
    "_quarantined",
    "tripped",
    "nack_received",
)
_GOOD = ("_healthy", "_returned", "_cleared", "_recovered", "_unthrottled")
_BESIDE = 52
"""Column in which what happened is told: behind number, time and name."""
_BELOW = 9
_LEAST = 60
"""Columns that a sentence needs beside them."""
_KINDS = {
    "operator": "magenta",
    "config": "cyan",
    "proxy": "blue",
    "weights": "yellow",
    "mesh": "blue",
    "process": "bright_black",
    "store": "red",
}


def show_events(events: Iterable[dict[str, Any]], console: Console) -> None:
    """Print events, one line each on a pipe and as many as they need on a terminal."""
    for event in events:
        if console.is_terminal:
            for line in _colored(event, console):
                console.print(line, soft_wrap=True)
        else:
            console.print(Text(plain(event)), soft_wrap=True)


def plain(event: dict[str, Any]) -> str:
    """Write an event as one line: number, time, name, place, change, reason."""
    number = "-" if event["id"] is None else str(event["id"])
    parts = (number, show_moment(event["at_unix_s"]), event["name"], *_rest(event))
    return "  ".join(_clean(part) for part in parts if part)


def _rest(event: dict[str, Any]) -> tuple[str, str, str]:
    return _clean(where(event)), _clean(change(event)), _clean(because(event))


def _clean(text: str) -> str:
    """What a proxy or an engine says may hold control characters, which a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def _colored(event: dict[str, Any], console: Console) -> Iterator[Text]:
    """Yield when, what and where; what changed and why goes beside it, or below where there is no room."""
    place, changed, why = _rest(event)
    if event["kind"] == "weights":
        # What was is in the row of weights before it.
        changed = _clean(event.get("after", ""))
    number = "-" if event["id"] is None else str(event["id"])
    moment = datetime.fromtimestamp(event["at_unix_s"], UTC)
    head = Text.assemble(
        (f"{number:>6} ", "dim"),
        (moment.strftime("%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z ", "dim"),
        (f"{event['name']:<24} ", _style(event)),
    )
    at = Text(f"{place}  " if place else "", style="bold")
    rest = Text.assemble(f"{changed}  " if changed else "", (why, "dim"))
    if head.cell_len + at.cell_len <= console.width:
        head = head + at
    else:
        rest = at + rest
    if not rest.plain:
        yield head
        return
    if head.cell_len + rest.cell_len <= console.width:
        yield head + rest
        return
    room = console.width - _BESIDE
    if room >= _LEAST:
        # A column of its own, in which all that follows stands.
        lines = rest.wrap(console, room)
        if head.cell_len + lines[0].cell_len > console.width:
            yield head
        else:
            head.append_text(lines[0])
            yield head
            lines.pop(0)
        indent = _BESIDE
    else:
        yield head
        lines, indent = rest.wrap(console, console.width - _BELOW), _BELOW
    for line in lines:
        yield Text(" " * indent).append_text(line)


def _style(event: dict[str, Any]) -> str:
    name = event["name"]
    if name.endswith(_BAD) or event.get("after") == "critical":
        return "bold red"
    if name.endswith(_GOOD):
        return "green"
    return _KINDS.get(event["kind"], "")
