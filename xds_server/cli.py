"""The command `xds-server`.

Exit codes are in docs/cli.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from xds_server import __version__, commands
from xds_server.config.config import Config
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError, show
from xds_server.config.setting_table import SETTINGS
from xds_server.resources.capability import Capability

if TYPE_CHECKING:
    from xds_server.config.settings import Settings

BAD_CONFIG = 2
FAILED = 1

app = typer.Typer(
    name="xds-server",
    help="Control plane for LLM inference fleets: GPU telemetry in, Envoy weights out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode=None,
)

_HELP = {row.name: f"{row.help} [env: {row.env}]" for row in SETTINGS}
_ConfigPath = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="The configuration file (YAML).", show_default=False),
]


@app.command()
def serve(
    config: _ConfigPath,
    *,
    xds_listen: Annotated[str | None, typer.Option(help=_HELP["xds_listen"])] = None,
    admin_listen: Annotated[str | None, typer.Option(help=_HELP["admin_listen"])] = None,
    state_dir: Annotated[str | None, typer.Option(help=_HELP["state_dir"])] = None,
    agents_token_file: Annotated[str | None, typer.Option(help=_HELP["agents_token_file"])] = None,
    admin_tokens_file: Annotated[str | None, typer.Option(help=_HELP["admin_tokens_file"])] = None,
    admin_anonymous: Annotated[str | None, typer.Option(help=_HELP["admin_anonymous"])] = None,
    xds_cert_file: Annotated[str | None, typer.Option(help=_HELP["xds_cert_file"])] = None,
    xds_key_file: Annotated[str | None, typer.Option(help=_HELP["xds_key_file"])] = None,
    xds_client_ca_file: Annotated[
        str | None, typer.Option(help=_HELP["xds_client_ca_file"])
    ] = None,
    admin_cert_file: Annotated[str | None, typer.Option(help=_HELP["admin_cert_file"])] = None,
    admin_key_file: Annotated[str | None, typer.Option(help=_HELP["admin_key_file"])] = None,
    log_format: Annotated[str | None, typer.Option(help=_HELP["log_format"])] = None,
    log_level: Annotated[str | None, typer.Option(help=_HELP["log_level"])] = None,
    grace_s: Annotated[float | None, typer.Option(help=_HELP["grace_s"])] = None,
    push_gap_ms: Annotated[float | None, typer.Option(help=_HELP["push_gap_ms"])] = None,
    store_file: Annotated[str | None, typer.Option(help=_HELP["store_file"])] = None,
    store_keep_days: Annotated[float | None, typer.Option(help=_HELP["store_keep_days"])] = None,
    store_max_bytes: Annotated[float | None, typer.Option(help=_HELP["store_max_bytes"])] = None,
    traces_url: Annotated[str | None, typer.Option(help=_HELP["traces_url"])] = None,
) -> None:
    """Serve proxies and agents until SIGTERM; SIGHUP or a change of CONFIG reloads it."""
    flags = {
        "xds_listen": xds_listen,
        "admin_listen": admin_listen,
        "state_dir": state_dir,
        "agents_token_file": agents_token_file,
        "admin_tokens_file": admin_tokens_file,
        "admin_anonymous": admin_anonymous,
        "xds_cert_file": xds_cert_file,
        "xds_key_file": xds_key_file,
        "xds_client_ca_file": xds_client_ca_file,
        "admin_cert_file": admin_cert_file,
        "admin_key_file": admin_key_file,
        "log_format": log_format,
        "log_level": log_level,
        "grace_s": grace_s,
        "push_gap_ms": push_gap_ms,
        "store_file": store_file,
        "store_keep_days": store_keep_days,
        "store_max_bytes": store_max_bytes,
        "traces_url": traces_url,
    }
    # Every command reads this module: what only one needs is imported there.
    from xds_server.config.settings import require_token, resolve  # noqa: PLC0415

    loaded = _load(config)
    try:
        settings = resolve(flags=flags, environ=os.environ, file=loaded.server)
        require_token(settings, discovers=loaded.discovers)
    except ConfigError as error:
        _fail(str(error), BAD_CONFIG)
    _serve(config, loaded, settings)


@app.command("check-config")
def check_config(config: _ConfigPath) -> None:
    """Check CONFIG and say everything that is wrong with it."""
    loaded = _load(config)
    instances = sum(1 for _ in loaded.topology.instances())
    models = len(loaded.topology.models)
    for doubt in loaded.doubts:
        typer.echo(f"xds-server: warning: {doubt}", err=True)
    typer.echo(f"{config}: OK: {_count(models, 'model')}, {_count(instances, 'instance')}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from xds_server.config.schema import json_schema  # noqa: PLC0415

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def render(
    config: _ConfigPath,
    capability: Annotated[
        Capability, typer.Option(help="The kind of proxy to render for.")
    ] = Capability.COMPOSITE,
) -> None:
    """Print the Envoy resources that CONFIG leads to before any telemetry, as JSON."""
    # Authoring Envoy's messages takes a second to import; other commands do without.
    from xds_server.fleet import Fleet  # noqa: PLC0415
    from xds_server.resources.builder import SnapshotBuilder  # noqa: PLC0415
    from xds_server.resources.render import render as to_json  # noqa: PLC0415

    loaded = _load(config)
    now = time.monotonic()
    plan = Fleet(loaded.topology, loaded.policy, now).evaluate([], now)
    snapshot = SnapshotBuilder(loaded.topology, loaded.policy, capability).build(plan)
    typer.echo(json.dumps(to_json(snapshot), indent=2))


@app.command()
def bootstrap(
    *,
    node_id: Annotated[str, typer.Option(help="Name of this proxy, unique in the fleet.")],
    cluster: Annotated[str, typer.Option(help="Name of the group it belongs to.")] = "fleet",
    server: Annotated[
        str, typer.Option(help="host:port of xds-server as the proxy reaches it.")
    ] = "127.0.0.1:18000",
    admin_port: Annotated[int, typer.Option(help="Port of Envoy's own admin page.")] = 9901,
    delta: Annotated[bool, typer.Option("--delta", help="Use delta xDS instead of SotW.")] = False,
    ca_file: Annotated[
        str | None, typer.Option(help="TLS: authorities of the server's certificate (PEM).")
    ] = None,
    cert_file: Annotated[
        str | None, typer.Option(help="TLS: certificate that the proxy shows (PEM).")
    ] = None,
    key_file: Annotated[str | None, typer.Option(help="TLS: its private key (PEM).")] = None,
) -> None:
    """Print the bootstrap file of an Envoy that takes everything else from xds-server."""
    from xds_server.resources.bootstrap import ClientTls  # noqa: PLC0415
    from xds_server.resources.bootstrap import bootstrap as make  # noqa: PLC0415

    host, _, port = server.rpartition(":")
    problems = []
    for flag, name in (("--node-id", node_id), ("--cluster", cluster)):
        if not name.strip() or not name.isprintable():
            problems.append(f"{flag}: {show(name)}: expected a name: printable and not empty")
    if not host.strip("[] ") or not _is_port(port):
        problems.append(f"--server: {show(server)}: expected host:port, like 127.0.0.1:18000")
    if not 0 <= admin_port <= 65535:
        problems.append(f"--admin-port: {admin_port}: expected a port, 0-65535 (0: a free one)")
    if (cert_file is None) != (key_file is None):
        problems.append("--cert-file and --key-file: expected both or none")
    if cert_file is not None and ca_file is None:
        problems.append("--ca-file: (missing): expected a file, as there is a certificate")
    if problems:
        _fail("\n  ".join(["bad arguments", *problems]), BAD_CONFIG)
    document = make(
        node_id=node_id,
        cluster=cluster,
        xds_host=host.strip("[]"),
        xds_port=int(port),
        admin_port=admin_port,
        delta=delta,
        tls=None if ca_file is None else ClientTls(ca=ca_file, cert=cert_file, key=key_file),
    )
    typer.echo(json.dumps(document, indent=2))


commands.add_to(app)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"xds-server {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    app()


def _serve(path: Path, config: Config, settings: Settings) -> None:
    import asyncio  # noqa: PLC0415

    from xds_server import logs  # noqa: PLC0415
    from xds_server.app import App  # noqa: PLC0415
    from xds_server.listening import StartError  # noqa: PLC0415

    logs.set_up(style=settings.log_format, level=settings.log_level)

    async def run() -> None:
        await App(path=path.absolute(), config=config, settings=settings).run()

    try:
        asyncio.run(run())
    except StartError as error:
        _fail(str(error), FAILED)


def _load(path: Path) -> Config:
    try:
        return load_file(path)
    except ConfigError as error:
        _fail(str(error), BAD_CONFIG)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 65535


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _fail(text: str, code: int) -> NoReturn:
    typer.echo(f"xds-server: {text}", err=True)
    sys.exit(code)
