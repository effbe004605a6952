"""`drain`, `undrain`, `force`, `unforce`: what operators order; every order is in the event history."""

from __future__ import annotations

import getpass
import urllib.parse
from typing import Annotated, Any

import typer

from xds_server.commands.admin_client import BAD_USAGE, Server, post
from xds_server.commands.asking import (
    ADMIN,
    Admin,
    Json,
    TokenFile,
    ask,
    clean,
    fail,
    note,
    print_json,
    server_at,
)

_Who = Annotated[
    str | None, typer.Option(help="Who orders it; the user of this terminal if not given.")
]


def drain(
    instance: Annotated[str, typer.Argument(help="Name of the instance.", show_default=False)],
    *,
    why: Annotated[str, typer.Option(help="For who comes next.", show_default=False)],
    who: _Who = None,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Give an instance no new requests until `undrain`; running ones finish."""
    path = f"/drain/{_quoted(instance)}"
    answer = _order(server_at(admin, token_file), path, who=who, why=_reason(why))
    name = answer["instance"]
    text = f"{name} is being drained; `xds-server undrain {name}` ends it"
    _say(answer, text, as_json=as_json)


def undrain(
    instance: Annotated[str, typer.Argument(help="Name of the instance.", show_default=False)],
    *,
    why: Annotated[str, typer.Option(help="For who comes next.")] = "",
    who: _Who = None,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Let a drained instance warm up and take requests again."""
    answer = _order(server_at(admin, token_file), f"/undrain/{_quoted(instance)}", who=who, why=why)
    if answer["note"] and not as_json:
        typer.echo(clean(f"{instance}: {answer['note']}"))
        return
    _say(answer, f"{instance} is no longer drained by an operator", as_json=as_json)


def force(
    tier: Annotated[
        str,
        typer.Argument(help="MODEL/TIER, or TIER where one model has it.", show_default=False),
    ],
    *,
    span: Annotated[
        str, typer.Option("--for", help="How long, 1s to 24h: 10m, 1h30m.", show_default=False)
    ],
    why: Annotated[str, typer.Option(help="For who comes next.", show_default=False)],
    who: _Who = None,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Give a tier all requests of its model, until the time is over or it can take none."""
    given = {"tier": tier, "for": span}
    answer = _order(server_at(admin, token_file), "/force", who=who, why=_reason(why), **given)
    name = f"{answer['model']}/{answer['tier']}"
    text = f"{name} gets all requests until {answer['until']}; `xds-server unforce {answer['model']}` ends it"
    _say(answer, text, as_json=as_json)


def unforce(
    model: Annotated[
        str | None,
        typer.Argument(help="MODEL; none where one model is forced.", show_default=False),
    ] = None,
    *,
    why: Annotated[str, typer.Option(help="For who comes next.")] = "",
    who: _Who = None,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """End a `force` before its time is over."""
    answer = _order(server_at(admin, token_file), "/unforce", who=who, why=why, model=model)
    name = f"{answer['model']}/{answer['tier']}"
    _say(answer, f"{name} is no longer forced: telemetry decides again", as_json=as_json)


def _order(server: Server, path: str, *, who: str | None, **given: str | None) -> Any:
    return ask(lambda: post(server, path, given | {"who": who or _user()}))


def _reason(why: str) -> str:
    if not why.strip():
        fail('--why: "": expected a reason: who comes next must know', BAD_USAGE)
    return why


def _say(answer: Any, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    typer.echo(clean(text))
    if answer.get("note"):
        note(clean(answer["note"]))


def _quoted(name: str) -> str:
    if not name.strip():
        fail('INSTANCE: "": expected the name of an instance', BAD_USAGE)
    return urllib.parse.quote(name, safe="")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user that has no name.
        return "cli"
