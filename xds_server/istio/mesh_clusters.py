"""Which clusters of a sidecar are our tiers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xds_server.istio.cluster_names import MeshCluster
from xds_server.istio.mesh import Mesh, MeshModel, MeshTier
from xds_server.istio.mesh_endpoints import Aliases
from xds_server.resources.names import cluster_name


def mesh_cluster(tier: MeshTier) -> MeshCluster | None:
    """Return the cluster that istiod makes for a tier; None where its port is not told."""
    if tier.port is None:
        return None
    return MeshCluster(tier.host, tier.port, tier.subset or "")


def clusters_of(mesh: Mesh) -> Iterator[tuple[MeshModel, MeshTier, MeshCluster | None]]:
    """Yield every tier that the mesh has a host for, with its cluster."""
    for model in mesh.models:
        for tier in model.tiers:
            yield model, tier, mesh_cluster(tier)


def aliases_of(mesh: Mesh) -> Aliases:
    """Return the names of the mesh by the names of our clusters."""
    names: dict[str, tuple[str, ...]] = {}
    for model, tier, cluster in clusters_of(mesh):
        if cluster is not None:
            own = cluster_name(model.model, tier.name)
            names[own] = (*names.get(own, ()), cluster.name)
    return names


def following(mesh: Callable[[], Mesh]) -> Callable[[], Aliases]:
    """Return a function that gives the names of the mesh as it is now, the same object while it is the same."""
    last: tuple[Mesh, Aliases] = Mesh(), {}

    def aliases() -> Aliases:
        nonlocal last
        now = mesh()
        if now != last[0]:
            last = now, aliases_of(now)
        return last[1]

    return aliases
