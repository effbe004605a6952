"""The builder of snapshots for who also serves a mesh's sidecars their endpoints."""

from __future__ import annotations

from collections.abc import Callable

from xds_server.config.config import Config
from xds_server.core.model import Topology
from xds_server.istio.mesh import MeshNow
from xds_server.istio.mesh_clusters import following
from xds_server.istio.mesh_endpoints import MakeBuilder, with_mesh_endpoints
from xds_server.resources.builder import SnapshotBuilder


def builders(config: Callable[[], Config], topology: Callable[[], Topology]) -> MakeBuilder:
    """Return a maker of builders that serve tiers under the names of the mesh as well, if there is one.

    Args:
        config: The configuration in use; asked at every build.
        topology: The topology in use.
    """
    return with_mesh_endpoints(
        SnapshotBuilder, following(MeshNow(lambda: config().istio, topology))
    )
