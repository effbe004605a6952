"""The commands `record` and `replay`: what a server took in and decided, through another policy."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from xds_server.commands.admin_client import BAD_USAGE, FAILED, AskError, Server, lines
from xds_server.commands.asking import ADMIN, Admin, TokenFile, fail, note, server_at
from xds_server.store.moments import parse_span


def record(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="To be written: JSON lines, gzip.", show_default=False),
    ],
    *,
    span: Annotated[str, typer.Option("--for", help="How long: 60s, 10m.")] = "60s",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Record what a running server takes in and decides, for `replay`. Ctrl-C ends it early and keeps it."""
    try:
        seconds = parse_span(span)
    except ValueError as error:
        fail(f"--for: {error}", BAD_USAGE)
    if not file.name or (file.exists() and not file.is_file()):
        fail(f"FILE: {file}: expected the name of a file to be written", BAD_USAGE)
    if file.exists() and not force:
        fail(f"FILE: {file}: it is there already (--force replaces it)", BAD_USAGE)
    server = server_at(admin, token_file)
    part = file.with_name(file.name + ".part")
    try:
        count, reason = _write(part, server, seconds)
        part.replace(file)
    except AskError as error:
        part.unlink(missing_ok=True)
        fail(str(error), error.code)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        fail(f"FILE: {file}: {error.strerror or error}: nothing is kept", FAILED)
    if reason:
        note(f"it ended early: {reason}")
    typer.echo(f"{file}: {count} evaluations in {file.stat().st_size} bytes")


def _write(part: Path, server: Server, seconds: float) -> tuple[int, str]:
    """Write what comes; return how many evaluations, and why it ended early (empty = it did not).

    Raises:
        AskError: There is no recording to be had, or the server ended before it.
        OSError: The file cannot be written.
    """
    from xds_server.recording.format import STILL_HERE, end_line  # noqa: PLC0415

    count = 0
    last = b""
    with gzip.open(part, "wb") as out:
        try:
            for line in lines(server, "/api/recording", {"for": f"{seconds:g}s"}):
                if line == STILL_HERE:
                    continue
                out.write(line)
                count += line.startswith(b'{"step"')
                last = line
        except KeyboardInterrupt:
            # It has been long enough, for whoever asked for longer.
            if not last:
                raise AskError("it was ended before anything came") from None
            out.write(end_line("Ctrl-C"))
            return count, "Ctrl-C"
    if not last.startswith(b'{"end"'):
        raise AskError("the server ended before the recording did")
    return count, str(json.loads(last)["end"])


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
    # Other commands do without the brain.
    from xds_server.config.load import load_file  # noqa: PLC0415
    from xds_server.config.problems import ConfigError  # noqa: PLC0415
    from xds_server.recording.comparison import document, show_comparison  # noqa: PLC0415
    from xds_server.recording.format import RecordingError  # noqa: PLC0415
    from xds_server.recording.plot import svg  # noqa: PLC0415
    from xds_server.recording.replay import MisfitError  # noqa: PLC0415
    from xds_server.recording.replay import replay as play  # noqa: PLC0415

    try:
        loaded = None if config is None else load_file(config)
        found = play(
            recording,
            None if loaded is None else loaded.topology,
            None if loaded is None else loaded.policy,
        )
    except ConfigError as error:
        fail(str(error), BAD_USAGE)
    except MisfitError as error:
        fail(f"{config}: {error}", BAD_USAGE)
    except RecordingError as error:
        fail(str(error), BAD_USAGE)
    if not found.is_whole:
        note(f"{recording}: it breaks off; what there is was played")
    other = "as recorded, again" if config is None else config.name
    stem = recording.name.removesuffix(".gz").removesuffix(".jsonl")
    target = recording.with_name(f"{stem}.svg") if plot is None else plot
    title = f"Tier weights: {recording.name} (configuration {found.config_version})"
    try:
        target.write_text(svg(found, title=title, other=other), encoding="utf-8")
    except OSError as error:
        fail(f"{target}: {error.strerror}", FAILED)
    if as_json:
        typer.echo(json.dumps(document(found), indent=2))
        return
    show_comparison(found, other, Console(highlight=False))
    typer.echo(f"plot: {target}")
    if found.same_as_recorded != found.evaluations:
        note(
            "played as recorded, some decisions differ from those that were made: this version of "
            "xds-server decides otherwise than the one that recorded"
        )
