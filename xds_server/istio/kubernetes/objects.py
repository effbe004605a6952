"""The objects that are ours alone, as they shall be: VirtualServices, DestinationRules, ServiceEntries. Pure.

They are plain documents in the form of Istio's CRDs. Every field that is written here is one that all versions
of these CRDs know since 1.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xds_server.core.model import InstanceId, ModelName, RequestClass, StaticAnswer, Topology
from xds_server.core.plan import EndpointHealth, InstancePlan, ModelPlan
from xds_server.core.policy import FailurePolicy
from xds_server.istio.kubernetes.errors import Ref
from xds_server.istio.mesh import Mesh, MeshModel, MeshTier
from xds_server.istio.weights import Action, RouteWeights, weigh
from xds_server.resources.static.answer import Dialect, whole

Document = dict[str, Any]

GROUP = "networking.istio.io"
MANAGED_BY = "app.kubernetes.io/managed-by"
"""Label of every object of ours; its value is `OURS`."""
OURS = "gpu-xds"
MODEL = "gpu-xds/model"
"""Label: which model it is for."""
OWNER = "gpu-xds/owner"
"""Annotation: which installation writes it, by the namespace and name of its lease."""
PORT_NAME = "http"
WEIGHT_TOTAL = 100
"""Endpoint weights of a ServiceEntry are written in hundredths of the largest: a coarser grid means fewer writes."""
RETRY_AFTER_S = 5
"""As proxies of ours say it to a class that is rejected."""
_KINDS = {
    "virtualservices": "VirtualService",
    "destinationrules": "DestinationRule",
    "serviceentries": "ServiceEntry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """An object that we make and nobody else writes."""

    ref: Ref
    model: ModelName
    spec: Document
    owner: str
    summary: str
    """What is in it, for a person: `primary=90 fallback=10`."""

    def document(self, live: Document | None = None) -> Document:
        """Return it as it is sent: over a live one, whose metadata stays."""
        metadata = dict((live or {}).get("metadata") or {})
        # The server keeps these itself; sent back they would only be noise.
        metadata.pop("managedFields", None)
        metadata |= {"name": self.ref.name, "namespace": self.ref.namespace}
        metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_BY: OURS, MODEL: self.model}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), OWNER: self.owner}
        return {
            "apiVersion": f"{self.ref.group}/{self.ref.version}",
            "kind": self.ref.kind,
            "metadata": metadata,
            "spec": self.spec,
        }


def ref_of(plural: str, namespace: str, name: str, *, version: str) -> Ref:
    """Name an object of Istio's."""
    return Ref(
        group=GROUP,
        version=version,
        plural=plural,
        kind=_KINDS[plural],
        namespace=namespace,
        name=name,
    )


def owned_objects(
    mesh: Mesh,
    plans: Sequence[ModelPlan],
    topology: Topology,
    failures: FailurePolicy,
    *,
    version: str,
    owner: str,
) -> list[Owned]:
    """Return every object that is ours, in the order in which they are to be written.

    Args:
        mesh: The models to make objects for.
        plans: The newest plan; a model without one gets nothing yet.
        topology: Where instances are.
        failures: When the mesh shall eject an endpoint of ours.
        version: Of Istio's API, as the server prefers it.
        owner: Value of the annotation `OWNER`.
    """
    by_model = {each.name: each for each in plans}
    models = [(each, by_model[each.model]) for each in mesh.models if each.model in by_model]
    made = [
        *_service_entries(models, topology),
        *_destination_rules(models, failures),
        *(_virtual_service(model, plan, topology.classes) for model, plan in models),
    ]
    return [
        Owned(
            ref=ref_of(each.plural, each.namespace, each.name, version=version),
            model=each.model,
            spec=each.spec,
            owner=owner,
            summary=each.summary,
        )
        for each in made
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    plural: str
    namespace: str
    name: str
    model: ModelName
    spec: Document
    summary: str


# VirtualServices.


def _virtual_service(model: MeshModel, plan: ModelPlan, classes: Sequence[RequestClass]) -> _Made:
    routes = weigh(plan, model).routes
    by_name = {each.name: each for each in classes}
    # The rest has no condition: whatever came after it would never be looked at.
    ordered = sorted(routes, key=lambda each: each.of is None or by_name[each.of].is_rest)
    spec: Document = {
        "http": [
            _http_route(each, model, None if each.of is None else by_name[each.of])
            for each in ordered
        ]
    }
    if not model.is_delegate:
        spec = {"hosts": [model.host], "gateways": list(model.gateways), **spec}
    return _Made(
        plural="virtualservices",
        namespace=model.namespace,
        name=model.name,
        model=model.model,
        spec=spec,
        summary="; ".join(summary(each) for each in ordered),
    )


def _http_route(
    route: RouteWeights, model: MeshModel, request_class: RequestClass | None
) -> Document:
    made: Document = {"name": model.model if route.of is None else f"{model.model}-{route.of}"}
    if request_class is not None and not request_class.is_rest:
        made["match"] = [_match(request_class)]
    match route.action:
        case Action.FORWARD:
            made["route"] = [
                {"destination": destination(tier), "weight": weight}
                for tier, weight in route.weights
            ]
        case Action.ANSWER:
            made |= _answer(model)
        case Action.REJECT:
            made |= _rejection()
    return made


def _match(request_class: RequestClass) -> Document:
    made: Document = {}
    if request_class.prefix is not None:
        made["uri"] = {"prefix": request_class.prefix}
    if request_class.header is not None:
        # An empty condition is how Istio writes "present, with any value".
        value = request_class.value
        made["headers"] = {request_class.header: {} if value is None else {"exact": value}}
    return made


def destination(tier: MeshTier) -> Document:
    """Return where a tier is, as a route names it."""
    made: Document = {"host": tier.host}
    if tier.subset is not None:
        made["subset"] = tier.subset
    if tier.port is not None:
        made["port"] = {"number": tier.port}
    return made


def _answer(model: MeshModel) -> Document:
    answer = model.answer or StaticAnswer(status=503, body={"error": "no tier is left"})
    headers = {"content-type": "application/json", "x-served-tier": "static"}
    if answer.retry_after_s is not None:
        headers["retry-after"] = f"{answer.retry_after_s:g}"
    text = whole(answer.body, dialect=Dialect.CHAT, model=model.model)
    return _direct(answer.status, text, headers)


def _rejection() -> Document:
    text = (
        '{"error":{"message":"The service is busy and serves more critical requests first.",'
        '"type":"rate_limit_error","code":"class_shed"}}'
    )
    headers = {"content-type": "application/json", "retry-after": str(RETRY_AFTER_S)}
    return _direct(429, text, headers)


def _direct(status: int, text: str, headers: Mapping[str, str]) -> Document:
    return {
        "directResponse": {"status": status, "body": {"string": text}},
        "headers": {"response": {"set": dict(headers)}},
    }


def summary(route: RouteWeights) -> str:
    """Write what becomes of a route's requests on one line."""
    head = f"{route.of}: " if route.of is not None else ""
    if route.action is not Action.FORWARD:
        return head + route.action.value
    return head + " ".join(f"{tier.name}={weight}" for tier, weight in route.weights)


# DestinationRules.


def _destination_rules(
    models: Sequence[tuple[MeshModel, ModelPlan]], failures: FailurePolicy
) -> Iterator[_Made]:
    """Yield one per host with subsets of ours: of two for a host Istio would merge or take only one."""
    for host, places in _by_host(models, lambda tier: bool(tier.labels)).items():
        model, first = places[0]
        subsets = {tier.subset or "": dict(tier.labels) for _, tier in places}
        yield _Made(
            plural="destinationrules",
            namespace=model.namespace,
            name=f"{model.name}-{_name(first)}",
            model=model.model,
            spec={
                "host": host,
                "trafficPolicy": _traffic_policy(failures),
                "subsets": [
                    {"name": name, "labels": labels} for name, labels in sorted(subsets.items())
                ],
            },
            summary=f"{host}: {', '.join(sorted(subsets))}",
        )


def _traffic_policy(failures: FailurePolicy) -> Document:
    return {
        # Ejections switch Istio's failover between localities on, and that would override the weights.
        "loadBalancer": {"simple": "LEAST_REQUEST", "localityLbSetting": {"enabled": False}},
        "outlierDetection": {
            "consecutive5xxErrors": failures.consecutive,
            "interval": "1s",
            "baseEjectionTime": "30s",
            "maxEjectionPercent": 100,
        },
    }


# ServiceEntries.


def _service_entries(
    models: Sequence[tuple[MeshModel, ModelPlan]], topology: Topology
) -> Iterator[_Made]:
    addresses = {each.id: (each.host, each.port) for _, _, each in topology.instances()}
    plans = {
        (model.model, tier.name): tier.instances for model, plan in models for tier in plan.tiers
    }
    for host, places in _by_host(models, lambda tier: tier.owns_endpoints).items():
        model, first = places[0]
        # The schema of the configuration requires a port here.
        ports = sorted({tier.port or 0 for _, tier in places})
        names = {port: PORT_NAME if len(ports) == 1 else f"{PORT_NAME}-{port}" for port in ports}
        endpoints = [
            {
                "address": addresses[each.id][0],
                "ports": {names[tier.port or 0]: addresses[each.id][1]},
                **({"labels": dict(tier.labels)} if tier.labels else {}),
                "weight": weight,
            }
            for owner, tier in places
            for each, weight in weighed(plans.get((owner.model, tier.name), ()), addresses)
        ]
        if not endpoints:
            continue
        yield _Made(
            plural="serviceentries",
            namespace=model.namespace,
            name=f"{model.name}-{_name(first)}",
            model=model.model,
            spec={
                "hosts": [host],
                "location": "MESH_INTERNAL",
                "resolution": "STATIC",
                "ports": [
                    {"number": port, "name": names[port], "protocol": "HTTP"} for port in ports
                ],
                "endpoints": endpoints,
            },
            summary=f"{host}: {len(endpoints)} endpoints",
        )


def weighed(
    plans: Sequence[InstancePlan], addresses: Mapping[InstanceId, tuple[str, int]]
) -> list[tuple[InstancePlan, int]]:
    """Return the instances that may take traffic, with weights of 1 to `WEIGHT_TOTAL`.

    Who may take none is left out: Istio takes a weight of 0 for 1. Where nobody may, all stay: a static
    entry must have endpoints, and the weights of the tiers keep traffic away.
    """
    known = [each for each in plans if each.id in addresses]
    able = [each for each in known if each.health is EndpointHealth.HEALTHY] or known
    most = max((each.weight for each in able), default=1)
    return [(each, max(1, round(WEIGHT_TOTAL * each.weight / most))) for each in able]


def _by_host(
    models: Sequence[tuple[MeshModel, ModelPlan]], wanted: Any
) -> dict[str, list[tuple[MeshModel, MeshTier]]]:
    found: dict[str, list[tuple[MeshModel, MeshTier]]] = {}
    for model, _ in models:
        for tier in model.tiers:
            if wanted(tier):
                found.setdefault(tier.host, []).append((model, tier))
    return found


def _name(tier: MeshTier) -> str:
    return tier.name.lower().replace("_", "-")
