"""The commands of `xds-server` about the past: events, incident, record, replay."""

from __future__ import annotations

import enum
import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from xds_server.admin_client import BAD_USAGE, FAILED, AskError, get, lines
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError
from xds_server.recording.comparison import document, show_comparison
from xds_server.recording.format import RecordingError
from xds_server.recording.plot import svg
from xds_server.recording.replay import MisfitError
from xds_server.recording.replay import replay as play
from xds_server.store.incident import markdown
from xds_server.store.moments import parse_span
from xds_server.store.row import Kind
from xds_server.timeline import show_events

FOLLOW_S = 0.5
"""How often who follows asks for more."""
_Admin = Annotated[str, typer.Option(help="Admin address of the running server.")]
_ADMIN = "http://127.0.0.1:18001"


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
    admin: _Admin = _ADMIN,
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
        _fail("--follow and --until do not go together", BAD_USAGE)
    console = Console(highlight=False)
    answer = _ask(lambda: get(admin, "/api/events", given | {"limit": limit}))
    if answer["has_more"] and not as_json:
        _note(f"only the newest {limit}; more with --limit")
    _print(answer, console, as_json=as_json)
    if not follow:
        if not answer["events"] and not as_json:
            _note("nothing happened that fits")
        return
    try:
        _follow(admin, given, answer["events"], console, as_json=as_json)
    except KeyboardInterrupt:
        return


def _follow(
    admin: str,
    given: dict[str, Any],
    seen: list[dict[str, Any]],
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Print what is new; a server that is away for a moment is waited for."""
    last = max((each["id"] or 0 for each in seen), default=0)
    is_away = False
    while True:
        time.sleep(FOLLOW_S)
        try:
            answer = get(admin, "/api/events", given | {"after": last, "limit": 5000})
        except AskError as error:
            if not error.is_gone:
                _fail(str(error), error.code)
            if not is_away:
                _note(str(error))
            is_away = True
            continue
        is_away = False
        _print(answer, console, as_json=as_json)
        last = max((each["id"] for each in answer["events"]), default=last)


def _print(answer: dict[str, Any], console: Console, *, as_json: bool) -> None:
    if answer["trouble"]:
        _note(f"events do not reach the disk of the server: {answer['trouble']}")
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
    admin: _Admin = _ADMIN,
) -> None:
    """Export an incident: timeline, evidence, weights around it, configuration."""
    if (number is None) == (at is None):
        _fail("give either ID, the number of an event, or --at TIME", BAD_USAGE)
    given = {"id": number, "at": at, "around": around}
    found = _ask(lambda: get(admin, "/api/incident", given))
    text = (
        json.dumps(found, indent=2, ensure_ascii=False) if form is Format.JSON else markdown(found)
    )
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        _fail(f"{output}: {error.strerror}", FAILED)


def record(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="To be written: JSON lines, gzip.", show_default=False),
    ],
    *,
    span: Annotated[str, typer.Option("--for", help="How long: 60s, 10m.")] = "60s",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    admin: _Admin = _ADMIN,
) -> None:
    """Record what a running server takes in and decides, for `replay`."""
    try:
        seconds = parse_span(span)
    except ValueError as error:
        _fail(f"--for: {error}", BAD_USAGE)
    if file.exists() and not force:
        _fail(f"{file} is there already (--force replaces it)", BAD_USAGE)
    part = file.with_name(file.name + ".part")
    count = 0
    last = b""
    try:
        with gzip.open(part, "wb") as out:
            for line in lines(admin, "/api/recording", {"for": f"{seconds:g}s"}):
                out.write(line)
                count += line.startswith(b'{"step"')
                last = line
        if not last.startswith(b'{"end"'):
            raise AskError("the server ended before the recording did")
        part.replace(file)
    except AskError as error:
        part.unlink(missing_ok=True)
        _fail(str(error), error.code)
    except OSError as error:
        _fail(f"{part}: {error.strerror or error}", FAILED)
    reason = json.loads(last)["end"]
    if reason:
        _note(f"it ended early: {reason}")
    typer.echo(f"{file}: {count} evaluations in {file.stat().st_size} bytes")


def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="RECORDING", help="What `record` wrote.", show_default=False)
    ],
    *,
    config: Annotated[
        Path | None,
        typer.Option(help="The configuration to try; without one, as it was recorded."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="The SVG to write; default: beside RECORDING.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers, for programs.")
    ] = False,
) -> None:
    """Play a recording through another policy, and compare what would have been decided.

    What was recorded stays as it was: requests that another policy would have sent elsewhere load
    what they loaded then.
    """
    try:
        loaded = None if config is None else load_file(config)
        found = play(
            recording,
            None if loaded is None else loaded.topology,
            None if loaded is None else loaded.policy,
        )
    except ConfigError as error:
        _fail(str(error), BAD_USAGE)
    except MisfitError as error:
        _fail(f"{config}: {error}", BAD_USAGE)
    except RecordingError as error:
        _fail(str(error), BAD_USAGE)
    if not found.is_whole:
        _note(f"{recording}: it breaks off; what there is was played")
    other = "as recorded, again" if config is None else config.name
    stem = recording.name.removesuffix(".gz").removesuffix(".jsonl")
    target = recording.with_name(f"{stem}.svg") if plot is None else plot
    title = f"Tier weights: {recording.name} (configuration {found.config_version})"
    try:
        target.write_text(svg(found, title=title, other=other), encoding="utf-8")
    except OSError as error:
        _fail(f"{target}: {error.strerror}", FAILED)
    if as_json:
        typer.echo(json.dumps(document(found), indent=2))
        return
    show_comparison(found, other, Console(highlight=False))
    typer.echo(f"plot: {target}")
    if found.same_as_recorded != found.evaluations:
        _note(
            "played as recorded, some decisions differ from those that were made: this version of "
            "xds-server decides otherwise than the one that recorded"
        )


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (events, incident, record, replay):
        app.command()(command)


def _ask(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except AskError as error:
        _fail(str(error), error.code)


def _note(text: str) -> None:
    typer.echo(f"xds-server: {text}", err=True)


def _fail(text: str, code: int) -> NoReturn:
    typer.echo(f"xds-server: {text}", err=True)
    sys.exit(code)
