"""`xds-server explain`: why a weight is what it is, with the numbers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from xds_server.commands.admin_client import BAD_USAGE, get
from xds_server.commands.asking import (
    ADMIN,
    Admin,
    Json,
    TokenFile,
    ask,
    console,
    fail,
    harmless,
    print_json,
    server_at,
)
from xds_server.commands.explanation import fitted, told


def explain(
    subject: Annotated[
        str,
        typer.Argument(help="INSTANCE, MODEL/TIER, MODEL/CLASS or MODEL.", show_default=False),
    ],
    *,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Say why a weight or share of a running server is what it is."""
    if not subject.strip():
        fail('SUBJECT: "": expected INSTANCE, MODEL/TIER, MODEL/CLASS or MODEL', BAD_USAGE)
    server = server_at(admin, token_file)
    answer: dict[str, Any] = ask(lambda: get(server, "/debug/explain", {"subject": subject}))
    if as_json:
        print_json(answer)
    else:
        out, text = console(), harmless(told(answer))
        typer.echo(fitted(text, out.width) if out.is_terminal else text)
