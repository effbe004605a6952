"""What of ours is which host of the mesh: frozen values, made from the configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xds_server.config.istio_checks import object_name
from xds_server.config.istio_schema import IstioModel, IstioSection, IstioTier
from xds_server.core.model import (
    ClassName,
    Model,
    ModelName,
    StaticAnswer,
    Tier,
    TierName,
    Topology,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTier:
    """Where the mesh finds a tier."""

    name: TierName
    host: str
    """Full host name of the service."""
    subset: str | None = None
    """Subset of that host's DestinationRule; None = all of the service."""
    port: int | None = None
    """Port of the service; None = it has one only."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of the subset's pods, sorted; without any, its DestinationRule is somebody else's."""
    owns_endpoints: bool = False
    """We publish the endpoints (a ServiceEntry); otherwise the mesh knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshModel:
    """One of our models as a host of the mesh."""

    model: ModelName
    host: str
    """What clients call."""
    namespace: str
    """Of the objects that are made for it."""
    name: str
    """Of these objects."""
    gateways: tuple[str, ...] = ("mesh",)
    """Empty where it is delegated to."""
    is_delegate: bool = False
    """A VirtualService of the mesh admin's owns host and gateways, and delegates to ours."""
    tiers: tuple[MeshTier, ...] = ()
    """In the order of the chain; a static tier only where the mesh has a host for it."""
    answer: StaticAnswer | None = None
    """What the model's static tier says."""

    def tier(self, name: TierName) -> MeshTier | None:
        """Return where the mesh finds a tier; None where it cannot route to it."""
        return next((each for each in self.tiers if each.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """All of ours that the mesh shall route."""

    models: tuple[MeshModel, ...] = ()

    def model(self, name: ModelName) -> MeshModel | None:
        """Return a model; None where the mesh is told nothing of it."""
        return next((each for each in self.models if each.model == name), None)


def route_name(model: MeshModel, of: ClassName | None) -> str:
    """Name the route of a class of a model's requests; None = that of all that are in no class."""
    return model.name if of is None else f"{model.name}-{of}"


def mesh_of(section: IstioSection | None, topology: Topology) -> Mesh:
    """Make the values of a checked section; a model that the topology has not (any more) is left out."""
    if section is None:
        return Mesh()
    known = {each.name: each for each in topology.models}
    return Mesh(
        models=tuple(
            _model(each, known[ModelName(each.model)])
            for each in section.models
            if each.model in known
        )
    )


class MeshNow:
    """The mesh as it is now, registered instances included: the same object while it is the same.

    It is worked out when the section or the topology is another object, not at every plan.
    """

    def __init__(
        self, section: Callable[[], IstioSection | None], topology: Callable[[], Topology]
    ) -> None:
        self._section = section
        self._topology = topology
        self._of: tuple[IstioSection | None, Topology | None] = (None, None)
        self._mesh = Mesh()

    def __call__(self) -> Mesh:
        """Return what of ours is which host of the mesh."""
        section, topology = self._section(), self._topology()
        if section is not self._of[0] or topology is not self._of[1]:
            made = mesh_of(section, topology)
            if made != self._mesh:
                self._mesh = made
            self._of = section, topology
        return self._mesh


def _model(section: IstioModel, model: Model) -> MeshModel:
    return MeshModel(
        model=model.name,
        host=section.host,
        namespace=section.namespace,
        name=section.name or object_name(section.model),
        gateways=() if section.delegate else tuple(section.gateways),
        is_delegate=section.delegate,
        tiers=tuple(
            _tier(tier, section.tiers[tier.name])
            for tier in model.tiers
            if tier.name in section.tiers
        ),
        answer=model.tiers[-1].answer,
    )


def _tier(tier: Tier, section: IstioTier) -> MeshTier:
    return MeshTier(
        name=tier.name,
        host=section.host,
        subset=section.subset,
        port=section.port,
        labels=tuple(sorted(section.labels.items())),
        owns_endpoints=section.endpoints == "instances",
    )
