"""`xds-server istio ...`: what a mesh admin needs from us."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml

from xds_server.commands.admin_client import BAD_USAGE
from xds_server.commands.asking import fail
from xds_server.commands.istio_apply import apply
from xds_server.commands.istio_mesh_config import mesh_config
from xds_server.config.config import Config
from xds_server.config.istio_checks import OBJECT_MOST, check_labels
from xds_server.config.load import load_file
from xds_server.config.names import LABEL_PATTERN, OBJECT_PATTERN, PATTERN_RULES
from xds_server.config.problems import ConfigError, show
from xds_server.istio.cluster_names import MeshCluster

istio = typer.Typer(
    name="istio",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@istio.callback()
def _group() -> None:
    """What a mesh admin needs to plug this control plane into Istio."""


istio.command()(apply)
istio.command("mesh-config")(mesh_config)


@istio.command()
def envoyfilter(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="The configuration file.", show_default=False),
    ],
    *,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the clients; Istio's root namespace means everywhere.")
    ],
    server: Annotated[
        str, typer.Option(help="host:port of our xDS port as the clients' sidecars reach it.")
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=VALUE of the clients' pods, repeatable; none = all of the namespace."
        ),
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(help="Host of a tier, repeatable; none = all that the configuration has."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the EnvoyFilter.")] = "fleet-xds",
    tls_ca: Annotated[
        str | None,
        typer.Option(help="CA file in the sidecar's container, where our xDS port has TLS."),
    ] = None,
    mesh_tls: Annotated[
        bool,
        typer.Option("--mesh-tls", help="The engines have sidecars: speak the mesh's mutual TLS."),
    ] = False,
) -> None:
    """Print the EnvoyFilter with which sidecars take the endpoints of our tiers, and their weights, from here."""
    from xds_server.istio.envoyfilter import envoy_filter  # noqa: PLC0415

    loaded = _load(config)
    labels, problems = _labels(label or [])
    problems += _names(name, namespace)
    if not _is_target(server):
        problems.append(
            f"--server: {show(server)}: expected host:port, like fleet-xds.ai.svc:18000"
        )
    clusters, more = _clusters(loaded, service or [])
    problems += more
    if problems:
        fail("\n  ".join(["bad arguments", *problems]), BAD_USAGE)
    made = envoy_filter(
        clusters,
        name=name,
        namespace=namespace,
        target=server,
        labels=labels,
        failures=loaded.policy.failures.consecutive,
        tls_ca_file=tls_ca,
        mesh_tls=mesh_tls,
    )
    typer.echo(yaml.safe_dump(made, sort_keys=False), nl=False)


def _clusters(config: Config, services: Sequence[str]) -> tuple[list[MeshCluster], list[str]]:
    """Return the clusters of the tiers with instances, and what is wrong with the choice."""
    from xds_server.istio.mesh import mesh_of  # noqa: PLC0415
    from xds_server.istio.mesh_clusters import clusters_of  # noqa: PLC0415

    if config.istio is None:
        return [], [
            "CONFIG has no istio section: expected istio.models with the hosts of our tiers"
        ]
    is_static = {
        (model.name, tier.name): tier.is_static
        for model in config.topology.models
        for tier in model.tiers
    }
    found, problems, known = [], [], set()
    for model, tier, cluster in clusters_of(mesh_of(config.istio, config.topology)):
        if is_static[model.model, tier.name]:
            continue
        known.add(tier.host)
        if services and tier.host not in services:
            continue
        if cluster is None:
            where = f"istio.models ({model.model}): tiers.{tier.name}.port"
            problems.append(
                f"{where}: missing: expected the port of {tier.host}, as clients call it"
            )
        else:
            found.append(cluster)
    for each in sorted(set(services) - known):
        expected = f"expected the host of a tier with instances: {', '.join(sorted(known))}"
        problems.append(f"--service: {show(each)}: {expected}")
    return found, problems


def _labels(written: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    labels, problems = {}, []
    for each in written:
        key, sign, value = each.partition("=")
        if not sign or not key:
            problems.append(f"--label: {show(each)}: expected KEY=VALUE, like app=llm-client")
        elif wrong := list(check_labels("--label", {"labels": {key: value}})):
            problems += [f"--label: {show(each)}: expected {one.expected}" for one in wrong]
        else:
            labels[key] = value
    return labels, problems


def _names(name: str, namespace: str) -> list[str]:
    """Return what the API server would say of the names, after the pipe into kubectl."""
    problems = []
    if not re.fullmatch(LABEL_PATTERN, namespace):
        rule = PATTERN_RULES[LABEL_PATTERN]
        problems.append(f"--namespace: {show(namespace)}: expected {rule}")
    if len(name) > OBJECT_MOST or not re.fullmatch(OBJECT_PATTERN, name):
        problems.append(f"--name: {show(name)}: expected {PATTERN_RULES[OBJECT_PATTERN]}")
    return problems


def _is_target(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host.strip("[] ")) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535


def _load(path: Path) -> Config:
    try:
        return load_file(path)
    except ConfigError as error:
        fail(str(error), BAD_USAGE)
