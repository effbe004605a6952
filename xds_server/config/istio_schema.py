"""The `istio` section: which of our models is which host of a mesh, and the ways that lead there.

`models` is shared by all ways; each way has a subsection of its own, and what is not written does not
run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from xds_server.config.mirror import Number, Whole
from xds_server.config.values import Listen, Name, Text, Written

LABEL_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""RFC 1123, a DNS label: names of namespaces, and what Istio takes as the name of a subset."""
OBJECT_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
"""RFC 1123, a DNS subdomain: names of objects in Kubernetes."""
HOST_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$"
"""A host with a dot at least: what a short name means depends on the namespace that it is read in."""
GATEWAY_PATTERN = r"^(mesh|([a-z0-9.-]+/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?)$"
PATTERN_RULES = {
    LABEL_PATTERN: "a name of Kubernetes: at most 63 lower case letters, digits or '-', no '-' at an end",
    OBJECT_PATTERN: "the name of a Kubernetes object: lower case letters, digits, '-' and '.', none of these "
    "at an end",
    HOST_PATTERN: "a full host name, like llm.ai.svc.cluster.local",
    GATEWAY_PATTERN: "mesh, or the namespace/name of a gateway",
}
"""The same for people."""

Label = Annotated[str, Field(pattern=LABEL_PATTERN)]
ObjectName = Annotated[str, Field(pattern=OBJECT_PATTERN, max_length=253)]
Host = Annotated[str, Field(pattern=HOST_PATTERN, max_length=253)]
Gateway = Annotated[str, Field(pattern=GATEWAY_PATTERN)]
Port = Annotated[Whole, Field(ge=1, le=65535)]


class IstioTier(Written):
    """Where the mesh finds a tier."""

    host: Host
    """Full name of the service, like `vllm-70b.ai.svc.cluster.local`."""
    subset: Label | None = None
    """Subset of a DestinationRule of that host; left out = all of the service."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the subset's pods: the DestinationRule is ours then. Left out = the mesh has one with that subset."""
    port: Port | None = None
    """Port of the service; left out = it has one only."""
    endpoints: Literal["mesh", "instances"] = "mesh"
    """Who knows the endpoints: the mesh (a Service, or a ServiceEntry of somebody else's), or we do: a
    ServiceEntry with the tier's instances and their weights is published."""


class IstioModel(Written):
    """One of our models, and the host that clients of the mesh call for it."""

    model: Name
    """Name of one of `models`."""
    host: Host
    """What clients call, like `llm.ai.svc.cluster.local`."""
    namespace: Label
    """Namespace of the objects that are made for it."""
    name: ObjectName | None = None
    """Name of these objects; left out = `gpu-xds-` and the model's name."""
    gateways: Annotated[list[Gateway], Field(min_length=1)] = Field(
        default_factory=lambda: ["mesh"]
    )
    """Gateways that route to it, as `namespace/name`; `mesh` is all sidecars."""
    delegate: Annotated[bool, Strict()] = False
    """The VirtualService has no hosts and no gateways: the mesh admin's own one for the host delegates to it."""
    tiers: Annotated[dict[Name, IstioTier], Field(min_length=1)]
    """By name of the tier. A static tier may be left out: its share stays with the tier before it, because a
    mesh cannot answer a share of the requests by itself; requests get the static answer once no tier is left."""


class ConfigSourceSection(Written):
    """MCP over xDS: istiod asks us for configuration (`meshConfig.configSources`)."""

    listen: Listen = "127.0.0.1:18010"
    """ip:port for istiod; it presents no identity, so only istiods may reach it."""
    certificate_file: Text | None = None
    """PEM file of the server's certificate, for `tlsSettings: {mode: SIMPLE}` (Istio 1.26); left out = plaintext."""
    key_file: Text | None = None
    """PEM file of its private key."""
    changes_per_second: Annotated[Number, Field(gt=0, le=4)] = 4.0
    """More are put together: istiod waits for 100 ms of quiet before it tells its proxies anything."""
    revision: Label | None = None
    """Label `istio.io/rev` of the objects; left out = every istiod takes them."""


class IstioSection(Written):
    """What an Istio mesh is told."""

    models: Annotated[list[IstioModel], Field(min_length=1)]
    config_source: ConfigSourceSection | None = None
    """Left out = istiod cannot ask us."""

    def routes(self) -> dict[str, Any]:
        """Return the ways that lead to the mesh, as they were written: all but `models`."""
        return self.model_dump(exclude={"models"}, exclude_none=True)
