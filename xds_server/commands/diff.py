"""`xds-server diff CONFIG`: what a new configuration would change, before it is applied."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from xds_server.commands.admin_client import BAD_USAGE, post
from xds_server.commands.asking import (
    ADMIN,
    Admin,
    Json,
    TokenFile,
    ask,
    clean,
    console,
    fail,
    print_json,
    server_at,
)
from xds_server.config.config import Config
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError

DIFFERS = 3
"""Exit code with `--exit-code` when proxies would get something new."""
_MOST = 30
"""Names in one line."""


def diff(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The new configuration.", show_default=False)
    ],
    *,
    against: Annotated[
        Path | None,
        typer.Option(help="Compare with this file, without telemetry, not with a running server."),
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help=f"End with {DIFFERS} if proxies would get anything new."),
    ] = False,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Show what CONFIG would change for a running server: settings, weights, resources. Nothing is applied."""
    new = _load(config)
    found: dict[str, Any]
    if against is None:
        server = server_at(admin, token_file)
        found = ask(lambda: post(server, "/api/diff", body=new.text.encode()))
    else:
        found = _offline(_load(against), new)
    if as_json:
        print_json(found)
    else:
        _show(found)
    if exit_code and not found["is_same"]:
        sys.exit(DIFFERS)


def _load(path: Path) -> Config:
    try:
        return load_file(path)
    except ConfigError as error:
        fail(str(error), BAD_USAGE)


def _offline(old: Config, new: Config) -> dict[str, Any]:
    # Authoring Envoy's messages takes a second to import; other commands do without.
    from xds_server.admin import prospect  # noqa: PLC0415

    now = time.monotonic()
    return prospect.compare(prospect.fresh(old, now), prospect.fresh(new, now))


def _show(found: Mapping[str, Any]) -> None:
    out = console()
    for line in found["settings"]:
        out.print(Text(clean(line)), soft_wrap=True)
    if not found["settings"]:
        out.print(Text("The settings are the same."))
    for title, rows in (("Tiers", found["tiers"]), ("Instances", found["instances"])):
        moved = [each for each in rows if each["before"] != each["after"]]
        if moved:
            out.print(_weights(title, moved))
    for line in _resources(found["resources"]):
        out.print(line, soft_wrap=True)
    if found["is_same"]:
        out.print(Text("Proxies would get nothing new."))


def _weights(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{title}: weights", title_justify="left", title_style="bold")
    names = [name for name in rows[0] if name not in {"before", "after"}]
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in ("before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [Text(clean(row[name])) for name in names]
        table.add_row(*cells, _weight(row["before"]), _weight(row["after"]))
    return table


def _weight(weight: int | None) -> str:
    return "-" if weight is None else str(weight)


def _resources(kinds: Mapping[str, Mapping[str, list[str]]]) -> Iterator[Text]:
    for kind, changes in kinds.items():
        for what, style in (("added", "green"), ("removed", "red"), ("changed", "yellow")):
            names = changes[what]
            if names:
                more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
                listed = clean(", ".join(names[:_MOST]))
                yield Text(f"{kind} {what}: {listed}{more}", style=style)
