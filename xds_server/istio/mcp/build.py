"""From weights and instances to objects of Istio. Pure, and judges nothing: `judge.py` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from xds_server.config.istio_checks import OBJECT_PREFIX
from xds_server.core.model import Instance, InstanceId, Model, RequestClass, StaticAnswer, Topology
from xds_server.core.plan import EndpointHealth, InstancePlan, ModelPlan
from xds_server.core.policy import Policy
from xds_server.istio.mcp.catalog import Draft
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mcp.proto import DestinationRule, HTTPRoute, ServiceEntry, VirtualService
from xds_server.istio.mesh import MeshModel, MeshTier
from xds_server.istio.weights import Action, ModelWeights, RouteWeights
from xds_server.resources.static.answer import Dialect, whole

PORT_NAME = "http"
"""Name of the one port of our ServiceEntries."""
REJECT_STATUS = 429
REJECT_RETRY_AFTER_S = 1


def drafts(
    *,
    weights: Sequence[ModelWeights],
    plans: Mapping[str, ModelPlan],
    topology: Topology,
    policy: Policy,
) -> list[Draft]:
    """Return the objects that the mesh needs: a VirtualService per model, and what of its hosts is ours.

    Args:
        weights: Of every model that the mesh knows.
        plans: The plans they were made of, by model.
        topology: The fleet's.
        policy: For ejection of endpoints that are ours.
    """
    models: dict[str, Model] = {each.name: each for each in topology.models}
    classes: dict[str, RequestClass] = {each.name: each for each in topology.classes}
    return [
        *_hosts(weights, plans, models, policy),
        *(_virtual_service(each, classes) for each in weights),
    ]


# Routes.


def _virtual_service(weights: ModelWeights, classes: Mapping[str, RequestClass]) -> Draft:
    model = weights.model
    # What takes the rest comes last, wherever the configuration has it: the first route that fits takes a request.
    routes = sorted(weights.routes, key=lambda each: _takes_rest(each, classes))
    message = VirtualService(http=[_route(each, model, classes) for each in routes])
    if not model.is_delegate:
        message.hosts.append(model.host)
        message.gateways.extend(model.gateways)
    return Draft(
        kind=Kind.VIRTUAL_SERVICE,
        namespace=model.namespace,
        name=model.name,
        message=message,
        model=model.model,
    )


def _takes_rest(weights: RouteWeights, classes: Mapping[str, RequestClass]) -> bool:
    found = None if weights.of is None else classes.get(weights.of)
    return found is None or found.is_rest


def _route(
    weights: RouteWeights, model: MeshModel, classes: Mapping[str, RequestClass]
) -> HTTPRoute:
    route = HTTPRoute(name=model.name if weights.of is None else f"{model.name}-{weights.of}")
    if not _takes_rest(weights, classes):
        assert weights.of is not None
        request_class = classes[weights.of]
        match = route.match.add()
        if request_class.header is not None:
            wanted = match.headers[request_class.header]
            if request_class.value is not None:
                wanted.exact = request_class.value
        if request_class.prefix is not None:
            match.uri.prefix = request_class.prefix
    match weights.action:
        case Action.FORWARD:
            for tier, weight in weights.weights:
                _forward(route, tier, weight)
        case Action.ANSWER:
            _answer(route, model.answer or StaticAnswer(), model.model)
        case Action.REJECT:
            body = {"error": {"message": "Too many requests of this class.", "type": "overloaded"}}
            _answer(
                route,
                StaticAnswer(status=REJECT_STATUS, body=body, retry_after_s=REJECT_RETRY_AFTER_S),
                model.model,
            )
    return route


def _forward(route: HTTPRoute, tier: MeshTier, weight: int) -> None:
    part = route.route.add(weight=weight)
    part.destination.host = tier.host
    if tier.subset is not None:
        part.destination.subset = tier.subset
    if tier.port is not None:
        part.destination.port.number = tier.port


def _answer(route: HTTPRoute, answer: StaticAnswer, model: str) -> None:
    route.direct_response.status = answer.status
    route.direct_response.body.string = whole(answer.body, dialect=Dialect.CHAT, model=model)
    headers = route.headers.response.set
    headers["content-type"] = "application/json"
    if answer.retry_after_s is not None:
        headers["retry-after"] = str(answer.retry_after_s)


# Hosts.


def _hosts(
    weights: Sequence[ModelWeights],
    plans: Mapping[str, ModelPlan],
    models: Mapping[str, Model],
    policy: Policy,
) -> Iterator[Draft]:
    """Yield what of the hosts is ours. Tiers may share one; its objects are in the first one's namespace."""
    places: dict[str, list[tuple[MeshModel, MeshTier]]] = {}
    for each in weights:
        for tier in each.model.tiers:
            places.setdefault(tier.host, []).append((each.model, tier))
    for host, parts in places.items():
        if any(tier.owns_endpoints for _, tier in parts):
            yield _service_entry(host, parts, plans, models)
        if any(tier.owns_endpoints or tier.labels for _, tier in parts):
            yield _destination_rule(host, parts, policy)


def _owner(parts: Sequence[tuple[MeshModel, MeshTier]]) -> str:
    names = {model.model for model, _ in parts}
    return names.pop() if len(names) == 1 else ""


def _destination_rule(
    host: str, parts: Sequence[tuple[MeshModel, MeshTier]], policy: Policy
) -> Draft:
    message = DestinationRule(host=host)
    subsets = {tier.subset: tier.labels for _, tier in parts if tier.subset and tier.labels}
    for name, labels in sorted(subsets.items()):
        message.subsets.add(name=name).labels.update(dict(labels))
    if any(tier.owns_endpoints for _, tier in parts):
        ejection = message.traffic_policy.outlier_detection
        ejection.consecutive_5xx_errors.value = policy.failures.consecutive
        ejection.max_ejection_percent = 100
        # Ejection turns locality fail-over on, which would overrule the endpoints' weights.
        message.traffic_policy.load_balancer.locality_lb_setting.enabled.value = False
    return Draft(
        kind=Kind.DESTINATION_RULE,
        namespace=parts[0][0].namespace,
        name=OBJECT_PREFIX + host,
        message=message,
        model=_owner(parts),
    )


def _service_entry(
    host: str,
    parts: Sequence[tuple[MeshModel, MeshTier]],
    plans: Mapping[str, ModelPlan],
    models: Mapping[str, Model],
) -> Draft:
    message = ServiceEntry(
        hosts=[host], location=ServiceEntry.MESH_INTERNAL, resolution=ServiceEntry.STATIC
    )
    ports: dict[int, str] = {}
    for _, tier in parts:
        assert tier.port is not None, "checked: endpoints of ours have a port"
        ports.setdefault(tier.port, PORT_NAME if not ports else f"{PORT_NAME}-{tier.port}")
    for number, name in ports.items():
        message.ports.add(number=number, protocol="HTTP", name=name)
    for model, tier in parts:
        labels = dict(tier.labels)
        for instance, weight in _endpoints(plans[model.model], models[model.model], tier):
            entry = message.endpoints.add(address=instance.host, weight=weight)
            entry.labels.update(labels)
            for name in ports.values():
                entry.ports[name] = instance.port
    return Draft(
        kind=Kind.SERVICE_ENTRY,
        namespace=parts[0][0].namespace,
        name=OBJECT_PREFIX + host,
        message=message,
        model=_owner(parts),
    )


def _endpoints(plan: ModelPlan, model: Model, tier: MeshTier) -> Iterable[tuple[Instance, int]]:
    """Yield the instances that may take requests: a weight of 0 would be made a 1, so others are left out."""
    known: dict[InstanceId, Instance] = {
        each.id: each for one in model.tiers if one.name == tier.name for each in one.instances
    }
    planned: Sequence[InstancePlan] = next(
        (each.instances for each in plan.tiers if each.name == tier.name), ()
    )
    for each in planned:
        if each.health is EndpointHealth.HEALTHY and each.id in known:
            yield known[each.id], max(1, each.weight)
