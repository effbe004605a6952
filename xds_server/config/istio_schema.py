"""The `istio` section: which of our models is which host of a mesh, and the ways that lead there.

`models` is shared by all ways; each way has a subsection of its own, and what is not written does not
run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict

from xds_server.config.mirror import Number, Section, Whole
from xds_server.config.names import GATEWAY_PATTERN, HOST_PATTERN, LABEL_PATTERN, OBJECT_PATTERN
from xds_server.config.values import Listen, Name, Text


def _is_target(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host.strip("[]") or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError("host:port, like istiod.istio-system.svc:15010")
    return text


Label = Annotated[str, Field(pattern=LABEL_PATTERN)]
ObjectName = Annotated[str, Field(pattern=OBJECT_PATTERN, max_length=253)]
Host = Annotated[str, Field(pattern=HOST_PATTERN, max_length=253)]
Gateway = Annotated[str, Field(pattern=GATEWAY_PATTERN)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
Target = Annotated[str, AfterValidator(_is_target)]


class IstioTier(Section):
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


class IstioModel(Section):
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


class ConfigSourceSection(Section):
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


class EndpointPickerSection(Section):
    """The picker of an InferencePool: gateways ask it over ext_proc which instance gets a request.

    Here Python is in the path of requests; docs/istio/endpoint-picker.md says what that costs.
    """

    listen: Listen = "127.0.0.1:9002"
    """ip:port for gateways, plaintext HTTP/2 (`appProtocol: http2` on its Service)."""
    models: list[Name] = Field(default_factory=list)
    """Names of `models` that it picks for, where the gateway has a picker for others; empty = all."""
    retries: Annotated[Whole, Field(ge=0, le=7)] = 2
    """Endpoints besides the picked one that the gateway is told to try, in order, as its own retry policy allows."""
    retry_after_s: Annotated[Whole, Field(ge=1, le=3600)] = 1
    """`retry-after` of requests that are shed (429): those that the plan gives to the static tier."""
    max_body_bytes: Annotated[Whole, Field(ge=1024, le=256_000_000)] = 8 * 2**20
    """Larger bodies are answered with 413 where they must be read; others pass whatever their size."""
    stop_delay_s: Annotated[Number, Field(ge=0, le=600)] = 0.0
    """How long gateways are still answered when the process stops, while readiness says no: until they have all heard
    that its endpoint is gone. About 5 in a cluster."""
    stop_grace_s: Annotated[Number, Field(ge=0, le=3600)] = 10.0
    """How long answers that are under way may take to end when the process stops: they pass through it."""
    conformance: Annotated[bool, Strict()] = False
    """Obey the conformance suite's header `test-epp-endpoint-selection`. Never where clients are real."""


class ProbeSection(Section):
    """Read back what arrives at sidecars: istiod accepts everything it is told, also what it does not use."""

    istiod: Target
    """host:port of istiod's xDS port: 15010 (plaintext), or 15012 with `ca_file`."""
    namespace: Label | None = None
    """Of the sidecar that the probe plays; left out = that of the first model."""
    service_account: Label = "default"
    """Its service account; istiod compares it with the token's or the certificate's."""
    labels: dict[str, str] = Field(default_factory=dict)
    """More labels of that sidecar, beside `app: gpu-xds-probe`, for a `Sidecar` resource that narrows what it gets."""
    cluster_id: Text = "Kubernetes"
    """As istiod's `CLUSTER_ID`."""
    ports: list[Port] = Field(default_factory=list)
    """Ports at which clients call the models' hosts; left out = the ports of their tiers."""
    late_s: Annotated[Number, Field(ge=1, le=3600)] = 15.0
    """The mesh does not follow when weights have not arrived for so long; istiod itself may take 10 s under churn."""
    ca_file: Text | None = None
    """PEM file of the authority of istiod's certificate; left out = plaintext."""
    certificate_file: Text | None = None
    """PEM file of a workload certificate, where istiod is to know the probe by one."""
    key_file: Text | None = None
    """PEM file of its private key."""
    token_file: Text | None = None
    """Token of the service account, with istiod's audience (`istio-ca`); read anew for every connection."""
    server_name: Text | None = None
    """Name in istiod's certificate, where it is not that of `istiod`."""


class WeightPatch(Section):
    """A route of the mesh admin's whose weights are set for a model, and nothing else of it."""

    model: Name
    """One of `istio.models`; no objects are made for it. The route's destinations are its tiers' hosts."""
    namespace: Label
    """Of the VirtualService."""
    virtual_service: ObjectName
    """Its name."""
    route: Text
    """Name of the HTTP route in it. With classes it gets the weights of all requests together."""


class KubernetesSection(Section):
    """Objects are written through the Kubernetes API; needs `gpu-xds[kubernetes]` and a role."""

    kubeconfig: Text | None = None
    """Left out = the pod's service account, else `$KUBECONFIG`, else `~/.kube/config`."""
    context: Text | None = None
    """Context of the kubeconfig; left out = its current one."""
    namespace: Label | None = None
    """Of the lease; left out = the pod's own, else `gpu-xds`."""
    lease: ObjectName = "gpu-xds-istio"
    """Name of the lease: of all control planes that share it one writes. It also names the owner of the objects."""
    lease_s: Annotated[Number, Field(ge=1, le=3600)] = 15.0
    """Who holds the lease and does not renew it for so long has lost it; it stops by itself after two thirds."""
    write_gap_s: Annotated[Number, Field(ge=1, le=3600)] = 1.0
    """Least time between two writes of an object: each is a revision in etcd and a push of every istiod."""
    patch: list[WeightPatch] = Field(default_factory=list)
    """Models for which a VirtualService of the mesh admin's is patched; for the others objects of our own are made."""


class IstioSection(Section):
    """What an Istio mesh is told."""

    models: list[IstioModel] = Field(default_factory=list)
    """Required for all ways but `endpoint_picker`."""
    config_source: ConfigSourceSection | None = None
    """Left out = istiod cannot ask us."""
    endpoint_picker: EndpointPickerSection | None = None
    """Left out = gateways cannot ask us."""
    kubernetes: KubernetesSection | None = None
    """Left out = nothing is written through the Kubernetes API."""

    probe: ProbeSection | None = None
    """Left out = nobody checks whether weights arrive."""

    def routes(self) -> dict[str, Any]:
        """Return the ways that lead to the mesh, as they were written: all but `models`."""
        return self.model_dump(exclude={"models"}, exclude_none=True)
