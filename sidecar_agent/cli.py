"""Command line of the agent.

Exit codes of every command: 0 done, 2 settings or arguments cannot be used. Others are listed with
their command.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sidecar_agent import __version__, logs
from sidecar_agent.run import run as run_agent
from sidecar_agent.settings import Flags, Settings, SettingsError, load

EXIT_SETTINGS = 2

app = typer.Typer(
    name="sidecar-agent",
    help="Streams what GPUs and their inference engines say to the control plane.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML).")]
ControlPlane = Annotated[str | None, typer.Option(help="host:port of the control plane.")]
Instances = Annotated[
    list[str] | None,
    typer.Option(
        "--instance", help="NAME=URL[,key=value...], instead of the file's list; repeatable."
    ),
]
Gpu = Annotated[str | None, typer.Option(help="auto, nvml or none.")]
AdminAddress = Annotated[
    str | None, typer.Option("--admin", help="host:port of the agent's own pages.")
]
Node = Annotated[str | None, typer.Option(help="Name of this agent.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="auto, json or text.")]


def _settings(flags: Flags, *, need_instances: bool = True) -> Settings:
    try:
        return load(flags, need_instances=need_instances)
    except SettingsError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(EXIT_SETTINGS) from None


@app.command()
def run(
    *,
    config: Config = None,
    control_plane: ControlPlane = None,
    instance: Instances = None,
    gpu: Gpu = None,
    admin: AdminAddress = None,
    node: Node = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the agent until SIGTERM.

    Exit codes: 3 the admin address is in use, 75 only a new process can read the GPUs again.
    SIGUSR1 lets go of the GPUs (for a driver upgrade).
    """
    settings = _settings(
        Flags(
            config=config,
            control_plane=control_plane,
            instances=tuple(instance or ()),
            gpu=gpu,
            admin=admin,
            node=node,
            log_level=log_level,
            log_format=log_format,
        )
    )
    logs.configure(level=settings.log.level, form=settings.log.format)
    raise typer.Exit(asyncio.run(run_agent(settings, None)))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point of the console script."""
    app()
