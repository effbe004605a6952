"""The endpoints of our tiers once more, under the names of the mesh's clusters.

An Envoy gets endpoints only by asking for their names, so those of a mesh cost the other proxies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from xds_server.core.model import Topology
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.resources.capability import Capability
from xds_server.resources.proto import ClusterLoadAssignment, serialize
from xds_server.resources.snapshot import ENDPOINT, Resource, Snapshot, TypeSnapshot

Aliases = Mapping[str, tuple[str, ...]]
"""Names of the mesh by the name of the tier's cluster (`resources.names.cluster_name`)."""


class Builder(Protocol):
    """Turns plans into the resources of one capability; as the control loop's."""

    def build(self, plan: Plan) -> Snapshot:
        """Return the resources; what did not change is the same object as before."""
        ...


MakeBuilder = Callable[[Topology, Policy, Capability], Builder]


class MeshEndpoints:
    """A builder whose snapshots also have the endpoints by the names of the mesh.

    Not for use by two threads at once.
    """

    def __init__(self, builder: Builder, aliases: Callable[[], Aliases]) -> None:
        self._builder = builder
        self._aliases = aliases
        self._before: tuple[Snapshot, Aliases] | None = None
        self._after: Snapshot | None = None
        self._copies: dict[str, tuple[Resource, Resource]] = {}

    def build(self, plan: Plan) -> Snapshot:
        """Return the snapshot of a plan; the same object while nothing served changes.

        Raises:
            PlanMismatchError: As the builder inside.
        """
        snapshot, aliases = self._builder.build(plan), self._aliases()
        if not aliases:
            return snapshot
        before = self._before
        if (
            self._after is None
            or before is None
            or before[0] is not snapshot
            or before[1] is not aliases
        ):
            self._after = self._extended(snapshot, aliases)
            self._before = snapshot, aliases
        return self._after

    def _extended(self, snapshot: Snapshot, aliases: Aliases) -> Snapshot:
        own = snapshot.of_type(ENDPOINT).resources
        copies = {
            name: self._copy(own[tier], name)
            for tier, names in aliases.items()
            if tier in own
            for name in names
        }
        self._copies = copies  # names of the past are let go
        named = {**own, **{name: copy for name, (_, copy) in copies.items()}}
        return replace(snapshot, types={**snapshot.types, ENDPOINT: TypeSnapshot(ENDPOINT, named)})

    def _copy(self, found: Resource, name: str) -> tuple[Resource, Resource]:
        """Return an assignment, and the same under another name; the same objects while it is the same."""
        before = self._copies.get(name)
        if before is not None and before[0] is found:
            return before
        table = ClusterLoadAssignment.FromString(found.body)
        table.cluster_name = name
        return found, Resource.of(name, serialize(table))


def with_mesh_endpoints(
    make_builder: MakeBuilder, aliases: Callable[[], Aliases]
) -> Callable[[Topology, Policy, Capability], MeshEndpoints]:
    """Return a maker of builders that serve tiers under the names of the mesh as well.

    Args:
        make_builder: Makes the builders that know our own names.
        aliases: Asked at every build, for a configuration may change them alone; returns the same object while
            they are the same.
    """

    def make(topology: Topology, policy: Policy, capability: Capability) -> MeshEndpoints:
        return MeshEndpoints(make_builder(topology, policy, capability), aliases)

    return make
