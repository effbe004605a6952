"""`xds-server token`: a new token for the admin address, and its line in the file of tokens."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from xds_server.commands.admin_client import BAD_USAGE, FAILED
from xds_server.commands.asking import fail, note
from xds_server.config.admin_tokens import Role, digest, parse_tokens
from xds_server.config.names import NAME_PATTERN, NAME_RULE
from xds_server.config.problems import ConfigError, show
from xds_server.store.moments import parse_span

PREFIX = "gpuxds_"
"""By it, a token that was put where it does not belong can be found."""
LEAST_S = 60.0
_HEAD = "# name role sha256 expires; see docs/security.md\n"


def token(
    name: Annotated[
        str,
        typer.Argument(
            help="Whom the history names for its orders: a person or a program.", show_default=False
        ),
    ],
    *,
    file: Annotated[
        Path,
        typer.Option(help="File of tokens that the line is added to.", show_default=False),
    ],
    role: Annotated[Role, typer.Option(help="What it permits.")] = Role.VIEWER,
    span: Annotated[
        str | None,
        typer.Option(
            "--for", help="How long: 12h, 90d; for ever if not given.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a token: print it, this once, and add its digest to the file that the server reads."""
    if not re.fullmatch(NAME_PATTERN, name):
        fail(f"NAME: {show(name)}: expected {NAME_RULE}", BAD_USAGE)
    words = [name, role.value, "", *_end(span)]
    made = PREFIX + secrets.token_urlsafe(32)
    words[2] = digest(made).hex()
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else _HEAD
        after = f"{before}{'' if before.endswith(chr(10)) else chr(10)}{' '.join(words)}\n"
        parse_tokens(after, source=str(file))
        _replace(file, after)
    except ConfigError as error:
        fail(str(error), BAD_USAGE)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file}: {getattr(error, 'strerror', None) or error}", FAILED)
    typer.echo(made)
    note(f"{file}: {name} is {role}; the token is not shown again")


def _end(span: str | None) -> list[str]:
    if span is None:
        return []
    try:
        span_s = parse_span(span)
        if span_s < LEAST_S:
            fail(f"--for: {span!r}: expected at least 1m", BAD_USAGE)
        end = datetime.fromtimestamp(time.time() + span_s, UTC)
    except (ValueError, OverflowError) as error:
        fail(f"--for: {error}", BAD_USAGE)
    return [end.strftime("%Y-%m-%dT%H:%M:%SZ")]


def _replace(file: Path, text: str) -> None:
    """Write the whole file or nothing; who may read it stays as it is, a new one is its owner's."""
    old = file.stat() if file.exists() else None
    target = file.resolve()
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(part).chmod(0o600 if old is None else old.st_mode & 0o777)
        if old is not None and os.geteuid() == 0:
            # Written by root, it stays readable to the server.
            os.chown(part, old.st_uid, old.st_gid)
        Path(part).replace(target)
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise
