"""The commands `events` and `incident`: what happened, and what there is to say about it."""

from __future__ import annotations

import enum
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from xds_server.commands.admin_client import BAD_USAGE, FAILED, AskError, Server, get
from xds_server.commands.asking import ADMIN, Admin, TokenFile, ask, fail, harmless, note, server_at
from xds_server.commands.timeline import show_events
from xds_server.store.incident import markdown
from xds_server.store.row import Kind

FOLLOW_S = 0.5
"""How often who follows asks for more."""


class Format(enum.StrEnum):
    """How an incident is written."""

    MD = "md"
    JSON = "json"


def events(
    *,
    model: Annotated[str | None, typer.Option(help="Only events of this model.")] = None,
    tier: Annotated[str | None, typer.Option(help="Only events of this tier.")] = None,
    instance: Annotated[str | None, typer.Option(help="Only events of this instance.")] = None,
    proxy: Annotated[str | None, typer.Option(help="Only events of this proxy.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only events of this name, such as instance_down.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"Only these kinds, with commas: {', '.join(each.value for each in Kind)}."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only newer ones: 10m, 2h, 2026-03-01T03:12:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only older ones, as for --since.")] = None,
    limit: Annotated[int, typer.Option(help="The newest this many, at most 5000.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print what happens until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, for programs.")
    ] = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Print what happened: decisions, proxies, configurations, operators, restarts."""
    given = {
        "model": model,
        "tier": tier,
        "instance": instance,
        "proxy": proxy,
        "name": name,
        "kind": kind,
        "since": since,
        "until": until,
    }
    if follow and until is not None:
        fail("--follow and --until do not go together", BAD_USAGE)
    console = Console(highlight=False)
    server = server_at(admin, token_file)
    answer = ask(lambda: get(server, "/api/events", given | {"limit": limit}))
    if follow:
        # What is not on disk yet has no number; it comes with the next look, once.
        answer["events"] = [each for each in answer["events"] if each["id"] is not None]
    if answer["has_more"] and not as_json:
        note(f"only the newest {limit}; more with --limit")
    _print(answer, console, as_json=as_json)
    if not follow:
        if not answer["events"] and not as_json:
            note("nothing happened that fits")
        return
    try:
        _follow(server, given, answer["events"], console, as_json=as_json)
    except KeyboardInterrupt:
        return


def _follow(
    server: Server,
    given: dict[str, Any],
    seen: list[dict[str, Any]],
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Print what is new; a server that is away for a moment is waited for."""
    last = max((each["id"] for each in seen), default=0)
    is_away = False
    while True:
        time.sleep(FOLLOW_S)
        try:
            answer = get(server, "/api/events", given | {"after": last, "limit": 5000})
        except AskError as error:
            if not error.is_gone:
                fail(str(error), error.code)
            if not is_away:
                note(str(error))
            is_away = True
            continue
        is_away = False
        _print(answer, console, as_json=as_json)
        last = max((each["id"] for each in answer["events"]), default=last)


def _print(answer: dict[str, Any], console: Console, *, as_json: bool) -> None:
    if answer["trouble"]:
        note(f"events do not reach the disk of the server: {answer['trouble']}")
    if as_json:
        for each in answer["events"]:
            typer.echo(json.dumps(each, ensure_ascii=False))
    else:
        show_events(answer["events"], console)
    sys.stdout.flush()


def incident(
    number: Annotated[
        int | None,
        typer.Argument(metavar="ID", help="Number of an event, as `events` prints it.", min=1),
    ] = None,
    *,
    at: Annotated[
        str | None, typer.Option(help="A time instead: 20m (ago), 2026-03-01T03:12:00Z.")
    ] = None,
    around: Annotated[str, typer.Option(help="How much time before and after it.")] = "5m",
    form: Annotated[Format, typer.Option("--format", help="Markdown or JSON.")] = Format.MD,
    output: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Export an incident: timeline, evidence, weights around it, configuration."""
    if (number is None) == (at is None):
        fail("give either ID, the number of an event, or --at TIME", BAD_USAGE)
    given = {"id": number, "at": at, "around": around}
    server = server_at(admin, token_file)
    found = ask(lambda: get(server, "/api/incident", given))
    text = (
        json.dumps(found, indent=2, ensure_ascii=False) if form is Format.JSON else markdown(found)
    )
    if output is None:
        typer.echo(harmless(text))
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{output}: {error.strerror}", FAILED)
