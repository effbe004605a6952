"""`xds-server status`: what the fleet is doing, in ten seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
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
    print_json,
    seconds,
    server_at,
)
from xds_server.commands.fleet_lines import lines
from xds_server.commands.verdict import verdict
from xds_server.core.nearest import shown, there_is
from xds_server.store.moments import show_moment

CLOCKS_APART_S = 30.0
"""From here on it is said that server and terminal do not agree what time it is."""
_Look = Callable[[], dict[str, Any]]
_Draw = Callable[..., RenderableType]


def status(
    model: Annotated[
        str | None, typer.Argument(help="Only this model.", show_default=False)
    ] = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option(help="With --watch: seconds between two looks.")] = 1.0,
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Every instance, also where many are as they should be."),
    ] = False,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Show what is wrong, then models, tiers, instances and classes: share, pressure, age, reason, what is next."""
    if not 0.1 <= every <= 3600:
        fail(f"--every: {every:g}: expected seconds from 0.1 to 3600", BAD_USAGE)
    server = server_at(admin, token_file)
    out = console()

    def look() -> dict[str, Any]:
        return _look(server, model)

    def draw(found: Mapping[str, Any], away: str = "") -> RenderableType:
        return _page(found, out, everything=everything, away=away)

    try:
        found = look()
        if watch and (as_json or not out.is_terminal):
            _print_on(look, draw, found, every_s=every, out=None if as_json else out)
        elif watch:
            _watch(look, draw, found, every_s=every, out=out)
        elif as_json:
            print_json(found)
        else:
            _print(out, draw(found))
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
        raise AskError(f"there is no model {shown(model)}; {there_is(model, names)}")
    return found | {"models": [each for each in found["models"] if each["model"] == model]}


def _watch(
    look: _Look, draw: _Draw, found: dict[str, Any], *, every_s: float, out: Console
) -> None:
    """Show it again and again; a server that is away for a moment is waited for."""
    with Live(draw(found), console=out, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            try:
                found = look()
                page = draw(found)
            except AskError as error:
                if not error.is_gone:
                    raise
                page = draw(found, str(error))
            live.update(page, refresh=True)


def _print_on(
    look: _Look, draw: _Draw, found: dict[str, Any], *, every_s: float, out: Console | None
) -> None:
    is_away = False
    while True:
        if not is_away:
            if out is None:
                typer.echo(json.dumps(found, ensure_ascii=False))
            else:
                _print(out, draw(found))
        sys.stdout.flush()
        time.sleep(every_s)
        try:
            found, is_away = look(), False
        except AskError as error:
            if not error.is_gone:
                raise
            if not is_away:
                note(str(error))
            is_away = True


def _print(out: Console, page: RenderableType) -> None:
    # A pipe has no width, so no line is broken there.
    out.print(page, soft_wrap=not out.is_terminal)


def _page(found: Mapping[str, Any], out: Console, *, everything: bool, away: str) -> RenderableType:
    """Write it all: what is wrong, when that was, then model by model."""
    moment = show_moment(found["unix_s"])[:19].replace("T", " ")
    behind_s = time.time() - found["unix_s"]
    parts: list[Text] = []
    if away:
        parts.append(Text(clean(away), style="bold red"))
        parts.append(Text(f"What you see is from {moment} UTC, {seconds(max(0.0, behind_s))} ago."))
    parts.append(verdict(found))
    if not away:
        parts.append(Text(f"{moment} UTC", style="dim"))
    if not away and abs(behind_s) > CLOCKS_APART_S:
        text = f"The clock here is {seconds(abs(behind_s))} {'ahead of' if behind_s > 0 else 'behind'} the server's."
        parts.append(Text(text, style="yellow"))
    parts.append(Text())
    parts += lines(
        found,
        width=out.width if out.is_terminal else None,
        everything=everything or not out.is_terminal,
        is_old=bool(away),
    )
    return Group(*parts)
