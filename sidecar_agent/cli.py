"""Command line of the agent.

Exit codes of every command: 0 done, 2 settings or arguments cannot be used. Others are listed with
their command.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from sidecar_agent import __version__, check, logs
from sidecar_agent import drain as draining
from sidecar_agent.gpu.nvml import WrongBindingsError
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.run import gpu_worker
from sidecar_agent.run import run as run_agent
from sidecar_agent.settings import Settings
from sidecar_agent.sources import Flags, SettingsError, load

EXIT_SETTINGS = 2

app = typer.Typer(
    name="sidecar-agent",
    help="Streams what GPUs and their inference engines say to the control plane.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML).")]
ControlPlane = Annotated[
    str | None, typer.Option(help="host:port of the control plane; several with commas between.")
]
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
InstanceName = Annotated[str, typer.Argument(help="Name of an instance of the running agent.")]


def _settings(flags: Flags, *, need_instances: bool = True) -> Settings:
    try:
        return load(flags, need_instances=need_instances)
    except SettingsError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(EXIT_SETTINGS) from None


def _gpus(settings: Settings) -> GpuWorker | None:
    try:
        return gpu_worker(settings)
    except WrongBindingsError as error:
        _say(str(error))
        raise typer.Exit(EXIT_SETTINGS) from None


def _say(text: str) -> None:
    typer.echo(text, err=True)


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

    Exit codes: 3 the admin address cannot be bound, 75 only a new process can read the GPUs again.
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
    raise typer.Exit(asyncio.run(run_agent(settings, _gpus(settings))))


@app.command(name="check")
def check_(
    *,
    config: Config = None,
    control_plane: ControlPlane = None,
    instance: Instances = None,
    gpu: Gpu = None,
    admin: AdminAddress = None,
    node: Node = None,
) -> None:
    """Print what the agent would see, the effective settings, and what is wrong.

    Exit codes: 1 something is wrong.
    """
    settings = _settings(
        Flags(
            config=config,
            control_plane=control_plane,
            instances=tuple(instance or ()),
            gpu=gpu,
            admin=admin,
            node=node,
        )
    )
    logs.configure(level="warning", form="text")
    report = asyncio.run(check.read(settings, _gpus(settings), connect=True))
    typer.echo(check.text(report))
    raise typer.Exit(check.EXIT_PROBLEMS if report.problems else check.EXIT_OK)


@app.command()
def once(
    *,
    config: Config = None,
    instance: Instances = None,
    gpu: Gpu = None,
    node: Node = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Read everything once and print it; the control plane is not asked.

    Exit codes: 1 something is wrong.
    """
    settings = _settings(Flags(config=config, instances=tuple(instance or ()), gpu=gpu, node=node))
    logs.configure(level="warning", form="text")
    report = asyncio.run(check.read(settings, _gpus(settings), connect=False))
    typer.echo(json.dumps(check.values(report), indent=2) if as_json else check.text(report))
    raise typer.Exit(check.EXIT_PROBLEMS if report.problems else check.EXIT_OK)


@app.command()
def drain(
    instance: InstanceName,
    *,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the last request.")] = 300.0,
    config: Config = None,
    admin: AdminAddress = None,
) -> None:
    """Take an instance out and wait until nothing runs on it (for preStop hooks).

    Exit codes: 3 no agent answers, 4 unknown instance, 5 not confirmed by the control plane in time,
    6 still busy in time. The instance stays out in every case; `undrain` takes it back.
    """
    settings = _settings(Flags(config=config, admin=admin), need_instances=False)
    raise typer.Exit(
        asyncio.run(
            draining.drain(admin=settings.admin, instance=instance, timeout_s=timeout, say=_say)
        )
    )


@app.command()
def undrain(instance: InstanceName, *, config: Config = None, admin: AdminAddress = None) -> None:
    """Let a drained instance take requests again.

    Exit codes: 3 no agent answers, 4 unknown instance.
    """
    settings = _settings(Flags(config=config, admin=admin), need_instances=False)
    raise typer.Exit(
        asyncio.run(draining.undrain(admin=settings.admin, instance=instance, say=_say))
    )


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point of the console script."""
    app()
