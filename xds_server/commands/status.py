"""`xds-server status`: what the fleet is doing, in ten seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from xds_server.commands.admin_client import BAD_USAGE, AskError, Server, get
from xds_server.commands.asking import (
    ADMIN,
    Admin,
    Json,
    TokenFile,
    clean,
    console,
    fail,
    note,
    percent,
    print_json,
    seconds,
    server_at,
)

_COLORS = {
    "healthy": "green",
    "degraded": "yellow",
    "critical": "bold red",
    "warming": "yellow",
    "recovering": "yellow",
    "draining": "magenta",
    "down": "bold red",
    "quarantined": "bold red",
}
_COLUMNS = ("", "state", "weight", "pressure", "ceiling", "age", "why")


def status(
    model: Annotated[
        str | None, typer.Argument(help="Only this model.", show_default=False)
    ] = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option(help="With --watch: seconds between two looks.")] = 1.0,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Show models, tiers, instances and classes: level, pressure, weight, ceiling, age, reason."""
    if not 0.1 <= every <= 3600:
        fail(f"--every: {every:g}: expected seconds from 0.1 to 3600", BAD_USAGE)
    server = server_at(admin, token_file)
    try:
        found = _look(server, model)
        if watch:
            _watch(server, model, found, every_s=every, as_json=as_json)
        elif as_json:
            print_json(found)
        else:
            console().print(_page(found))
    except AskError as error:
        fail(str(error), error.code)
    except KeyboardInterrupt:
        return


def _look(server: Server, model: str | None) -> dict[str, Any]:
    found: dict[str, Any] = get(server, "/api/status")
    if model is None:
        return found
    names = [each["model"] for each in found["models"]]
    if model not in names:
        raise AskError(f"there is no model {model!r}; there is {', '.join(names) or 'none'}")
    return found | {"models": [each for each in found["models"] if each["model"] == model]}


def _watch(
    server: Server, model: str | None, found: dict[str, Any], *, every_s: float, as_json: bool
) -> None:
    """Show it again and again; a server that is away for a moment is waited for."""
    out = console()
    if as_json or not out.is_terminal:
        _print_on(server, model, found, every_s=every_s, out=None if as_json else out)
        return
    with Live(_page(found), console=out, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            try:
                page: RenderableType = _page(_look(server, model))
            except AskError as error:
                if not error.is_gone:
                    raise
                page = Group(Text(clean(str(error)), style="bold red"), _page(found, is_old=True))
            live.update(page, refresh=True)


def _print_on(
    server: Server,
    model: str | None,
    found: dict[str, Any],
    *,
    every_s: float,
    out: Console | None,
) -> None:
    is_away = False
    while True:
        if out is None:
            typer.echo(json.dumps(found, ensure_ascii=False))
        elif not is_away:
            out.print(_page(found))
        sys.stdout.flush()
        time.sleep(every_s)
        try:
            found, is_away = _look(server, model), False
        except AskError as error:
            if not error.is_gone:
                raise
            if not is_away:
                note(str(error))
            is_away = True


def _page(found: Mapping[str, Any], *, is_old: bool = False) -> RenderableType:
    parts: list[RenderableType] = []
    if not found["warm"]:
        parts.append(Text("Proxies are not answered yet: it waits for telemetry.", style="yellow"))
    if not found["models"]:
        parts.append(Text("There is no plan yet."))
    parts += [_model(each, is_old=is_old) for each in found["models"]]
    return Group(*parts)


def _model(model: Mapping[str, Any], *, is_old: bool) -> Table:
    table = Table(title=clean(model["model"]), title_justify="left", title_style="bold")
    for name in _COLUMNS:
        right = name in {"weight", "pressure", "ceiling", "age"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "why")
    for row in _rows(model):
        table.add_row(*row, style="dim" if is_old else "")
    return table


def _rows(model: Mapping[str, Any]) -> Iterator[tuple[RenderableType, ...]]:
    for tier in model["tiers"]:
        yield (
            Text(clean(tier["tier"]), style="bold"),
            _state(tier["level"]),
            f"{tier['weight'] / tier['of']:.1%}",
            percent(tier["pressure"]),
            "",
            "",
            Text(_why(tier)),
        )
        for each in tier["instances"]:
            stale = "" if each["telemetry"] == "fresh" else f" ({each['telemetry']})"
            yield (
                Text(f"  {clean(each['instance'])}"),
                _state(each["state"], stale),
                str(each["weight"]),
                percent(each["pressure"]),
                percent(each["ceiling"]),
                seconds(each["age_s"]),
                Text(_why(each)),
            )
    for each in model["classes"]:
        state = "rejected" if each["is_rejected"] else "shed" if each["is_shed"] else "served"
        shares = ", ".join(
            f"{tier} {w / each['of']:.1%}" for tier, w in each["weights"].items() if w
        )
        yield (
            Text(f"class {clean(each['class'])}"),
            Text(state, style="green" if state == "served" else "bold red"),
            f"{each['demand_ratio']:.1%}",
            "",
            "",
            "",
            Text(f"{clean(shares)}: {_why(each)}"),
        )


def _why(part: Mapping[str, Any]) -> str:
    return clean(f"{part['sentence']} ({part['rule']})")


def _state(word: str, more: str = "") -> Text:
    return Text(word + more, style=_COLORS.get(word, ""))
