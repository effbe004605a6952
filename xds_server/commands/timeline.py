"""Events as lines for people: colored columns on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
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
            console.print(_colored(event), soft_wrap=False)
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


def _colored(event: dict[str, Any]) -> Text:
    place, changed, why = _rest(event)
    number = "-" if event["id"] is None else str(event["id"])
    moment = datetime.fromtimestamp(event["at_unix_s"]).astimezone()
    return Text.assemble(
        (f"{number:>6} ", "dim"),
        (moment.strftime("%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d} ", "dim"),
        (f"{event['name']:<24} ", _style(event)),
        (f"{place}  " if place else "", "bold"),
        f"{changed}  " if changed else "",
        (why, "dim"),
    )


def _style(event: dict[str, Any]) -> str:
    name = event["name"]
    if name.endswith(_BAD) or event.get("after") == "critical":
        return "bold red"
    if name.endswith(_GOOD):
        return "green"
    return _KINDS.get(event["kind"], "")
