"""What there is to say about an incident: events, their evidence, the weights around it, the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xds_server.store.moments import show_moment
from xds_server.store.row import Kind, Query, Row

Read = Callable[[Query], Sequence[Row]]
MOST = 5000
"""Events in one export; of more the oldest are given, and it says so."""


def export(read: Read, *, at_unix_s: float, around_s: float, event: Row | None) -> dict[str, Any]:
    """Gather an incident as JSON values.

    Args:
        read: Answers queries; blocks on the disk.
        at_unix_s: The middle of the time looked at.
        around_s: How much time before and after it.
        event: The event that was asked for; None = a time was.

    Returns:
        What `xds-server incident --format json` prints.
    """
    start, end = at_unix_s - around_s, at_unix_s + around_s
    rows = list(
        read(Query(since_unix_s=start, until_unix_s=end, limit=MOST + 1, oldest_first=True))
    )
    is_cut = len(rows) > MOST
    rows = rows[:MOST]
    before = read(Query(kinds=(Kind.CONFIG,), until_unix_s=start, limit=20))
    weights = [row for row in rows if row.kind is Kind.WEIGHTS]
    models = sorted({row.model for row in rows if row.model})
    earlier = [
        row
        for model in models
        for row in read(Query(kinds=(Kind.WEIGHTS,), model=model, until_unix_s=start, limit=1))
    ]
    version = _version([*before, *(row for row in rows if row.at_unix_s <= at_unix_s)])
    return {
        "event": None if event is None else event.document(),
        "at_unix_s": at_unix_s,
        "from_unix_s": start,
        "to_unix_s": end,
        "models": models,
        "config_version": version,
        "config_changes": [row.document() for row in rows if row.kind is Kind.CONFIG],
        "weights_before": [row.document() for row in earlier],
        "weights": [row.document() for row in weights],
        "evidence": [
            {
                "id": row.id,
                "name": row.name,
                "where": where(row.document()),
                "rule": row.rule,
                "inputs": row.data["inputs"],
            }
            for row in rows
            if row.data.get("inputs")
        ],
        "timeline": [row.document() for row in rows if row.kind is not Kind.WEIGHTS],
        "is_cut": is_cut,
    }


def _version(rows: Sequence[Row]) -> str | None:
    versions = [
        row.data["version"] for row in rows if row.kind is Kind.CONFIG and "version" in row.data
    ]
    return str(versions[-1]) if versions else None


def markdown(incident: dict[str, Any]) -> str:
    """Write an export as a Markdown document for a ticket or a review."""
    lines = [f"# {_title(incident)}", ""]
    lines += [
        f"- Time looked at: {show_moment(incident['from_unix_s'])} to {show_moment(incident['to_unix_s'])}",
        f"- Models: {', '.join(incident['models']) or 'none'}",
        f"- Configuration in use: {incident['config_version'] or 'unknown'}",
        "",
        "## Timeline",
        "",
    ]
    if incident["is_cut"]:
        lines += [f"Only the first {MOST} events; ask for less time around it.", ""]
    lines += _table(
        ("time", "what", "where", "change", "why"),
        [
            (
                show_moment(each["at_unix_s"]),
                each["name"],
                where(each),
                change(each),
                because(each),
            )
            for each in incident["timeline"]
        ],
    )
    lines += ["", "## Evidence", ""]
    lines += _table(
        ("event", "where", "rule", "numbers"),
        [
            (
                f"{each['id']} {each['name']}",
                each["where"],
                each["rule"],
                ", ".join(f"{key}={_number(value)}" for key, value in each["inputs"].items()),
            )
            for each in incident["evidence"]
        ],
    )
    lines += ["", "## Weights of tiers", ""]
    lines += _table(
        ("time", "model", "weights", "why"),
        [
            (
                show_moment(each["at_unix_s"]) + (" (before)" if index < count else ""),
                each.get("model", ""),
                each.get("after", ""),
                because(each),
            )
            for count in (len(incident["weights_before"]),)
            for index, each in enumerate([*incident["weights_before"], *incident["weights"]])
        ],
    )
    return "\n".join(lines)


def where(event: dict[str, Any]) -> str:
    """Name what an event is about: `chat/primary a100-0`, or the proxy."""
    place = "/".join(event[key] for key in ("model", "tier") if event.get(key))
    return " ".join(filter(None, (place, event.get("instance"), event.get("proxy"))))


def change(event: dict[str, Any]) -> str:
    """Write what was and what is: `healthy -> down`."""
    before, after = event.get("before", ""), event.get("after", "")
    return f"{before} -> {after}" if before and after else before or after


def because(event: dict[str, Any]) -> str:
    """Write why, and who ordered it."""
    who = f"by {event['who']}" if event.get("who") else ""
    parts = (event.get("text"), who, event.get("why"))
    rule = f"[{event['rule']}]" if event.get("rule") else ""
    return " ".join(filter(None, (": ".join(filter(None, parts)), rule)))


def _title(incident: dict[str, Any]) -> str:
    event = incident["event"]
    if event is None:
        return f"Incident at {show_moment(incident['at_unix_s'])}"
    place = where(event)
    of = f" of {place}" if place else ""
    return f"Incident {event['id']}: {event['name']}{of} at {show_moment(event['at_unix_s'])}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return ["Nothing in this time."]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]


def _cell(text: str) -> str:
    """What engines and proxies say must not end a cell or begin HTML."""
    flat = " ".join(str(text).split())
    for sign in "\\|<`":
        flat = flat.replace(sign, "\\" + sign)
    return flat


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
