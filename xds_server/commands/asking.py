"""What commands that ask a running server have in common: the address, the answer, the way out."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from xds_server.commands.admin_client import FAILED, AskError, Server, read_token, strange

ADMIN = "http://127.0.0.1:18001"
"""Where a server listens that was not told otherwise."""
PIPE_COLUMNS = 240
"""What is not a terminal has no width; this one breaks no line of a table."""
Admin = Annotated[
    str,
    typer.Option(help="Admin address of the running server.", envvar="XDS_SERVER_ADMIN"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the token that permits it, where the server asks for one.",
        envvar="XDS_SERVER_TOKEN_FILE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON, for programs.")]
_T = TypeVar("_T")


def server_at(admin: str, token_file: Path | None) -> Server:
    """Return whom the options mean, and as whom."""
    return Server(admin, ask(lambda: read_token(token_file)))


def ask(question: Callable[[], _T]) -> _T:
    """Return the answer; where there is none, end with one sentence and its exit code."""
    try:
        return question()
    except AskError as error:
        fail(str(error), error.code)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command that asks a server end with one sentence where the answer is not of this version."""

    @functools.wraps(command)
    def run(*given: Any, **named: Any) -> None:
        try:
            command(*given, **named)
        except (LookupError, TypeError, AttributeError) as error:
            if "admin" not in named or named.get("against") is not None:
                raise  # Nobody was asked.
            fail(strange(str(named["admin"]), f"{type(error).__name__}: {error}"), FAILED)

    return run


def fail(text: str, code: int) -> NoReturn:
    """End with a sentence on stderr."""
    note(text)
    sys.exit(code)


def note(text: str) -> None:
    """Say something beside the output."""
    typer.echo(harmless(f"xds-server: {text}"), err=True)


def print_json(value: Any) -> None:
    """Print a document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> Console:
    """Return where tables go: as wide as the terminal, or wide enough for every line."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def clean(text: str) -> str:
    """Take out what a terminal would obey: proxies, agents and people write what they like."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def harmless(text: str) -> str:
    """Take out what a terminal would obey and leave the lines as they are."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def percent(ratio: float | None) -> str:
    """Write a share; a dash where it is not known."""
    return "-" if ratio is None else f"{ratio:.0%}"


def seconds(span: float | None) -> str:
    """Write an age; a dash where it is not known."""
    if span is None:
        return "-"
    return f"{span:.1f} s" if span < 100 else f"{span / 60:.0f} min"
