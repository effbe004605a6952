"""`xds-server istio apply CONFIG`: write the objects of the Kubernetes way once, or show what would be written."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from xds_server.commands.admin_client import BAD_USAGE
from xds_server.commands.asking import Json, fail, note, print_json
from xds_server.config.config import Config
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError

if TYPE_CHECKING:
    from xds_server.config.istio_schema import KubernetesSection
    from xds_server.istio.kubernetes.apply import Outcome
    from xds_server.istio.kubernetes.change import Wanted
    from xds_server.istio.kubernetes.client import KubernetesClient

FAILED = 1
_OFFLINE_VERSION = "v1"
"""Of Istio's API since 1.22, where no server is asked."""


def apply(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration file.", show_default=False)
    ],
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only print what would be written; the API server judges it and keeps nothing.",
        ),
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Only print the objects, and ask no API server at all."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the objects that CONFIG keeps through the Kubernetes API, with the weights that it begins with.

    For a first look before a server may write: the server itself keeps them up to date. While one does,
    nothing is written here. Missing verbs, and what in the mesh would make the objects useless, are told.
    """
    loaded = _load(config)
    if loaded.istio is None or loaded.istio.kubernetes is None:
        fail("CONFIG has no istio.kubernetes section: nothing is written for a mesh", BAD_USAGE)
    try:
        from xds_server.istio.kubernetes import apply as applying  # noqa: PLC0415
    except ImportError as error:
        fail(f"istio.kubernetes needs gpu-xds[kubernetes]: {error}", FAILED)
    section = loaded.istio.kubernetes
    remarks: list[str] = []
    if offline:
        wanted = _wanted(loaded, section, _OFFLINE_VERSION)
        outcomes = [applying.offline(each) for each in wanted]
    else:
        import asyncio  # noqa: PLC0415

        outcomes, remarks = asyncio.run(_ask(loaded, section, dry_run=dry_run))
    if as_json:
        print_json(
            {
                "objects": [dataclasses.asdict(each) for each in outcomes],
                "remarks": remarks,
                "written": not (dry_run or offline),
            }
        )
    else:
        _print(outcomes, remarks, would=dry_run or offline)
    if not all(each.is_good for each in outcomes):
        sys.exit(FAILED)


async def _ask(
    config: Config, section: KubernetesSection, *, dry_run: bool
) -> tuple[list[Outcome], list[str]]:
    from xds_server.istio.kubernetes.auth import SignIn  # noqa: PLC0415
    from xds_server.istio.kubernetes.client import KubernetesClient  # noqa: PLC0415
    from xds_server.istio.kubernetes.errors import AuthError, KubernetesError  # noqa: PLC0415

    sign_in = SignIn(kubeconfig=section.kubeconfig, context=section.context)
    client = KubernetesClient(sign_in)
    try:
        await client.open()
        return await _settle_all(client, config, section, dry_run=dry_run)
    except AuthError as error:
        fail(f"cannot sign in to Kubernetes: {error}", FAILED)
    except KubernetesError as error:
        fail(f"Kubernetes at {client.server}: {error}", FAILED)
    finally:
        await client.close()


async def _settle_all(
    client: KubernetesClient, config: Config, section: KubernetesSection, *, dry_run: bool
) -> tuple[list[Outcome], list[str]]:
    from xds_server.istio.kubernetes import apply as applying  # noqa: PLC0415
    from xds_server.istio.kubernetes.advice import advise  # noqa: PLC0415
    from xds_server.istio.kubernetes.mesh_writer import target_of  # noqa: PLC0415
    from xds_server.istio.mesh import mesh_of  # noqa: PLC0415

    version = await applying.preferred_version(client)
    if version is None:
        fail(f"{client.server} has no networking.istio.io: install Istio's CRDs there", FAILED)
    wanted, target = _wanted(config, section, version), target_of(section)
    lacking = await applying.missing_rules(client, wanted, target)
    remarks = [f"This account lacks, {each}" for each in lacking]
    if not dry_run and (who := await applying.writer(client, target, time.time())):
        fail(f"control plane {who} holds {target} and keeps the objects: use --dry-run", FAILED)
    outcomes = [await applying.settle(client, each, dry_run=dry_run) for each in wanted]
    mesh = mesh_of(config.istio, config.topology)
    return outcomes, [*remarks, *await advise(client, mesh, wanted, version=version)]


def _wanted(config: Config, section: KubernetesSection, version: str) -> Sequence[Wanted]:
    from xds_server.fleet import Fleet  # noqa: PLC0415
    from xds_server.istio.kubernetes.mesh_writer import owner_of, target_of  # noqa: PLC0415
    from xds_server.istio.kubernetes.wanted import all_wanted  # noqa: PLC0415
    from xds_server.istio.mesh import mesh_of  # noqa: PLC0415

    now = time.monotonic()
    plan = Fleet(config.topology, config.policy, now).evaluate([], now)
    return all_wanted(
        mesh_of(config.istio, config.topology),
        plan.models,
        config.topology,
        config.policy,
        section,
        version=version,
        owner=owner_of(target_of(section)),
    )


def _print(outcomes: Sequence[Outcome], remarks: Sequence[str], *, would: bool) -> None:
    for each in outcomes:
        is_write = each.is_good and each.body is not None
        verb = f"would {each.action}" if would and is_write else each.action
        summary = f" ({each.summary})" if each.summary else ""
        typer.echo(f"# {each.object}: {verb}{summary}")
        if each.text:
            typer.echo(f"# {each.text}")
        if each.body is not None:
            typer.echo(_yaml(each.body))
        typer.echo("---")
    for text in remarks:
        note(text)


def _yaml(body: Any) -> str:
    # Through JSON: YAML anchors for parts that are the same object would puzzle readers.
    return yaml.safe_dump(json.loads(json.dumps(body)), sort_keys=False).rstrip()


def _load(path: Path) -> Config:
    try:
        return load_file(path)
    except ConfigError as error:
        fail(str(error), BAD_USAGE)
