"""`xds-server istio mesh-config CONFIG`: what istiod must be told to ask us, and whether it was told so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from xds_server.commands.admin_client import BAD_USAGE
from xds_server.commands.asking import fail
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError, show

if TYPE_CHECKING:
    from xds_server.config.istio_schema import ConfigSourceSection

FAILED = 1


def mesh_config(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration file.", show_default=False)
    ],
    *,
    address: Annotated[
        str | None,
        typer.Option(help="host:port of the config source as istiod reaches it; default: listen."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of the authority of its certificate; none = plaintext."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Look at this MeshConfig (or the ConfigMap istio, or an IstioOperator) instead."
        ),
    ] = None,
) -> None:
    """Print the part of a mesh's configuration that makes istiod ask us, or check one.

    istiod reads it when it starts, and does not start while we are not there.
    """
    from xds_server.istio.mcp.mesh_config import (  # noqa: PLC0415
        check_mesh_config,
        fragment,
        read_mesh_config,
    )

    try:
        loaded = load_file(config)
    except ConfigError as error:
        fail(str(error), BAD_USAGE)
    if loaded.istio is None or loaded.istio.config_source is None:
        fail("CONFIG has no istio.config_source section: istiod cannot ask us", BAD_USAGE)
    section = loaded.istio.config_source
    if check is None:
        pem = None if ca is None else _read(ca)
        if problem := _trouble(address, pem, section):
            fail(problem, BAD_USAGE)
        made = fragment(address or section.listen, ca_pem=pem)
        typer.echo(yaml.safe_dump(made, sort_keys=False), nl=False)
        return
    try:
        raw = read_mesh_config(_read(check))
    except ValueError as error:
        fail(f"{check}: {error}", BAD_USAGE)
    problems = [str(each) for each in check_mesh_config(raw, section)]
    if problems:
        fail("\n  ".join([f"{check}: {len(problems)} to mend", *problems]), FAILED)
    typer.echo(f"{check}: istiod asks us")


def _trouble(address: str | None, pem: str | None, section: ConfigSourceSection) -> str:
    """Return why an istiod with what would be printed would not start; empty where it would."""
    reached = address or section.listen
    host, _, port = reached.rpartition(":")
    if not host.strip("[]") or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        where = "--address" if address else "istio.config_source.listen"
        return f"{where}: {show(reached)}: expected host:port as istiod reaches it; give --address"
    if not address and host.strip("[]") in ("0.0.0.0", "::"):
        return (
            f"istio.config_source.listen: {show(reached)}: every address of this machine, and none that istiod "
            "could reach: give --address"
        )
    if section.certificate_file is not None and pem is None:
        return "istio.config_source has a certificate: give --ca, the file of its authority"
    if section.certificate_file is None and pem is not None:
        return "--ca: istio.config_source has no certificate_file: we speak plaintext there"
    if pem is not None and "-----BEGIN" not in pem:
        return "--ca: expected certificates in PEM"
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {error}", BAD_USAGE)
