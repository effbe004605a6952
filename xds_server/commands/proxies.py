"""`xds-server proxies`: what every Envoy was sent, what it took, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xds_server.commands.admin_client import FAILED, get
from xds_server.commands.asking import (
    ADMIN,
    Admin,
    Json,
    TokenFile,
    ask,
    clean,
    console,
    fail,
    note,
    print_json,
    seconds,
    server_at,
)
from xds_server.core.nearest import shown, there_is

_COLORS = {"synced": "green", "stale": "yellow", "not_sent": "dim", "error": "bold red"}
_WORDS = {"synced": "acked", "stale": "stale", "not_sent": "nothing to send", "error": "nacked"}
"""As operators call them."""
_WIDE = 100
"""Columns from which there is room for versions and whole names of types."""
_COLUMNS = {"type": 4, "state": 8, "sent": 10, "acked": 10, "lag": 5, "nacks": 5}
"""And how much of each is left on a narrow terminal."""
_SHORT = {
    "Cluster": "CDS",
    "ClusterLoadAssignment": "EDS",
    "Listener": "LDS",
    "RouteConfiguration": "RDS",
    "TypedExtensionConfig": "ECDS",
}
_VERSION = 12
"""As many characters of a version tell it from another one."""


def proxies(
    proxy: Annotated[
        str | None, typer.Argument(help="Only the proxy with this node id.", show_default=False)
    ] = None,
    *,
    behind: Annotated[
        bool, typer.Option("--behind", help="Only types that are not up to date.")
    ] = False,
    as_json: Json = False,
    admin: Admin = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Show for every proxy and type of resource what was sent, acked, nacked, and what it lacks."""
    server = server_at(admin, token_file)
    found: list[dict[str, Any]] = ask(lambda: get(server, "/debug/syncz"))
    if proxy is not None:
        known = [each["proxy"]["id"] for each in found]
        found = [each for each in found if each["proxy"]["id"] == proxy]
        if not found:
            fail(f"no proxy {shown(proxy)} is connected; {there_is(proxy, sorted(known))}", FAILED)
    if behind:
        found = [each | {"types": list(_behind(each))} for each in found]
        found = [each for each in found if each["types"]]
    if as_json:
        print_json(found)
        return
    if not found:
        note("every proxy is up to date" if behind else "no proxy is connected")
        return
    out = console()
    for each in found:
        show(each, out)


def show(found: Mapping[str, Any], out: Console) -> None:
    """Print how one proxy stands."""
    out.print(_table(found, is_narrow=out.width < _WIDE))
    for text in _notes(found):
        out.print(text, soft_wrap=True)


def _behind(proxy: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (each for each in proxy["types"] if each["state"] in {"stale", "error"})


def _table(found: Mapping[str, Any], *, is_narrow: bool) -> Table:
    proxy = found["proxy"]
    about = f"{proxy['agent'] or 'unknown'} {proxy['version']}".strip()
    title = (
        f"{proxy['id']} (cluster {proxy['cluster'] or '-'}; {about}; served as {proxy['capability']}; "
        f"{found['protocol']}; connected for {seconds(found['connected_s'])})"
    )
    table = Table(
        title=Text(clean(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        padding=(0, 2, 0, 0),
    )
    for name, least in _COLUMNS.items():
        table.add_column(
            name,
            justify="right" if name in {"lag", "nacks"} else "left",
            no_wrap=True,
            min_width=least,
        )
    for each in found["types"]:
        state = each["state"]
        table.add_row(
            Text(_type(each, is_narrow=is_narrow)),
            Text(_WORDS.get(state, state), style=_COLORS.get(state, "")),
            _version(each["sent_version"], each["sent_age_s"], is_narrow=is_narrow),
            _version(each["acked_version"], each["acked_age_s"], is_narrow=is_narrow),
            seconds(each["lag_s"]),
            str(each["nacks"]),
        )
    return table


def _type(found: Mapping[str, Any], *, is_narrow: bool) -> str:
    name = clean(found["type_url"].rpartition(".")[2])
    return _SHORT.get(name, name) if is_narrow else name


def _version(version: str, age_s: float | None, *, is_narrow: bool) -> Text:
    if not version or age_s is None:
        return Text("-")
    if is_narrow:
        return Text(f"{seconds(age_s)} ago")
    return Text(f"{clean(version)[:_VERSION]} ({seconds(age_s)} ago)")


def _notes(found: Mapping[str, Any]) -> Iterator[Text]:
    for each in found["types"]:
        if each["error"]:
            name = each["type_url"].rpartition(".")[2]
            which = ", ".join(each["error_names"])
            text = f"  refused {name} {which}: {each['error']} ({seconds(each['error_age_s'])} ago)"
            yield Text(clean(text), style="red")
    for gap in found["proxy"]["lacks"]:
        yield Text(f"  lacks {clean(gap)}", style="yellow")
