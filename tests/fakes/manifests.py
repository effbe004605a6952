"""The Kubernetes manifests of `deploy/`: read, built with kustomize, and what their roles allow."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.kube_api import Rule
from tests.fakes.xds_process import ROOT

KUBERNETES, ISTIO = ROOT / "deploy/kubernetes", ROOT / "deploy/istio"
COMPONENTS = tuple(sorted(each.parent.name for each in ISTIO.glob("*/kustomization.yaml")))
"""What `deploy/istio` can add, one folder for each way into a mesh."""
ACCOUNT = {"kind": "ServiceAccount", "name": "xds-server", "namespace": "gpu-xds"}
"""Whose rights they are."""

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    """Return the objects of one file."""
    return list(yaml.safe_load_all(path.read_text()))


def rules_of(found: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Return what the server's account may do with these objects, as an authorizer reads them."""
    found = list(found)
    roles = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["rules"]
        for each in found
        if each["kind"] == "Role"
    }
    return [
        Rule(
            tuple(rule["verbs"]),
            group,
            plural,
            binding["metadata"]["namespace"],
            tuple(rule.get("resourceNames", ())),
        )
        for binding in found
        if binding["kind"] == "RoleBinding" and ACCOUNT in binding["subjects"]
        for rule in roles[binding["metadata"]["namespace"], binding["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    ]


def kustomize() -> list[str] | None:
    """Return the command that builds a folder; None where a machine has neither."""
    for program, *more in (("kustomize", "build"), ("kubectl", "kustomize")):
        if found := shutil.which(program):
            return [found, *more]
    return None


def with_components(directory: Path, components: Iterable[str]) -> Path:
    """Write a kustomization as a user would: the manifests, and some ways into a mesh."""
    directory.mkdir(exist_ok=True)
    text = yaml.safe_dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(KUBERNETES, directory)],
            "components": [os.path.relpath(ISTIO / each, directory) for each in components],
        }
    )
    (directory / "kustomization.yaml").write_text(text)
    return directory


async def built(folder: Path) -> list[Document]:
    """Return what `kubectl apply -k` would apply, in its order; kustomize's own words when it refuses."""
    command = kustomize()
    assert command, "there is neither kustomize nor kubectl"
    process = await asyncio.create_subprocess_exec(
        *(*command, str(folder)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()
    return list(yaml.safe_load_all(out))
