"""Commands of `xds-server` for who is on call, one noun per module. See docs/cli.md."""

from __future__ import annotations

import typer

from xds_server.commands.asking import guarded
from xds_server.commands.diff import diff
from xds_server.commands.explain import explain
from xds_server.commands.history import events, incident
from xds_server.commands.istio import istio
from xds_server.commands.orders import drain, force, undrain, unforce
from xds_server.commands.proxies import proxies
from xds_server.commands.recordings import record, replay
from xds_server.commands.simulate import simulate
from xds_server.commands.status import status
from xds_server.commands.token import token


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (
        status,
        explain,
        proxies,
        events,
        incident,
        drain,
        undrain,
        force,
        unforce,
        record,
        replay,
        diff,
        simulate,
        token,
    ):
        app.command()(guarded(command))
    app.add_typer(istio)
