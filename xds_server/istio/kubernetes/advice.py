"""What of the mesh around our objects makes them useless or dangerous: a look, no write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xds_server.istio.kubernetes.change import Wanted
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import Cause, KubernetesError
from xds_server.istio.kubernetes.objects import MANAGED_BY, OURS, OWNER, ref_of
from xds_server.istio.kubernetes.route_patch import Patched, full_host
from xds_server.istio.mesh import Mesh, MeshModel

Document = dict[str, Any]


async def advise(
    client: KubernetesClient, mesh: Mesh, wanted: Sequence[Wanted], *, version: str
) -> list[str]:
    """Return what should be looked at, each in a sentence or two with the fix.

    What may not be listed is said instead of checked; a server that does not answer says nothing.
    """
    patched = {each.model for each in wanted if isinstance(each, Patched)}
    models = [each for each in mesh.models if each.model not in patched]
    texts: list[str] = []
    listed: dict[str, list[Document]] = {"virtualservices": [], "destinationrules": []}
    for namespace in sorted({each.namespace for each in models}):
        for plural, found in listed.items():
            ref = ref_of(plural, namespace, "", version=version)
            try:
                found.extend(await client.all_of(ref))
            except KubernetesError as error:
                if error.cause is Cause.FORBIDDEN:
                    texts.append(f"Whether the mesh uses our objects is not checked. {error}")
                models = [each for each in models if each.namespace != namespace]
                break
    return [*texts, *doubts(models, listed["virtualservices"], listed["destinationrules"])]


def doubts(
    models: Sequence[MeshModel], services: Sequence[Document], rules: Sequence[Document]
) -> Iterator[str]:
    """Yield what is doubtful.

    Args:
        models: Those that objects of ours are made for.
        services: VirtualServices of their namespaces.
        rules: DestinationRules of their namespaces.
    """
    for model in models:
        if model.is_delegate:
            yield from _without_root(model, services)
        else:
            yield from _clashes(model, services)
        yield from _missing_subsets(model, rules)


def _without_root(model: MeshModel, services: Sequence[Document]) -> Iterator[str]:
    for each in services:
        namespace = each["metadata"]["namespace"]
        for route in each.get("spec", {}).get("http") or ():
            delegate = route.get("delegate") or {}
            if (delegate.get("name"), delegate.get("namespace") or namespace) == (
                model.name,
                model.namespace,
            ):
                return
    yield (
        f"No VirtualService in namespace {model.namespace} delegates to {model.namespace}/{model.name}: unless one "
        f"elsewhere does, the mesh does not use it. Give the VirtualService of {model.host} a route with "
        f"delegate: {{name: {model.name}, namespace: {model.namespace}}} and nothing but a match beside it."
    )


def _clashes(model: MeshModel, services: Sequence[Document]) -> Iterator[str]:
    for each in services:
        metadata, spec = each["metadata"], each.get("spec", {})
        if (metadata["namespace"], metadata["name"]) == (model.namespace, model.name):
            continue
        hosts = {full_host(host, metadata["namespace"]) for host in spec.get("hosts") or ()}
        shared = set(spec.get("gateways") or ["mesh"]) & set(model.gateways)
        if model.host in hosts and shared:
            yield (
                f"VirtualService {metadata['namespace']}/{metadata['name']} is for {model.host} too, on "
                f"{', '.join(sorted(shared))}: Istio uses the older of two and ignores the other. Set delegate: true "
                f"for model {model.model} and delegate to {model.namespace}/{model.name} in it, or delete it"
                f"{_by(metadata)}."
            )


def _by(metadata: Document) -> str:
    """Say it of an object that was ours: under a name of before, or another installation's."""
    if (metadata.get("labels") or {}).get(MANAGED_BY) != OURS:
        return ""
    owner = (metadata.get("annotations") or {}).get(OWNER, "")
    return f" (it was made by gpu-xds with lease {owner}: under another name before, or by another installation)"


def _missing_subsets(model: MeshModel, rules: Sequence[Document]) -> Iterator[str]:
    known = {
        (full_host(str(each["spec"].get("host")), each["metadata"]["namespace"]), subset["name"])
        for each in rules
        for subset in each.get("spec", {}).get("subsets") or ()
    }
    for tier in model.tiers:
        if tier.subset and not tier.labels and (tier.host, tier.subset) not in known:
            yield (
                f"No DestinationRule in namespace {model.namespace} has subset {tier.subset} of {tier.host}, where "
                f"tier {tier.name} of {model.model} is: unless another namespace has one, requests there are answered "
                "with 503. Make one, or give the subset's labels in istio.models, and we make it."
            )
