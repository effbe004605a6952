"""From a plan to the snapshot of one group of proxies.

The slow path, in the constructor, authors every shape with typed messages when topology or policy
change. The hot path, `build`, sets numbers in place and serializes what they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xds_server.core.model import ModelName, Topology
from xds_server.core.plan import ModelPlan, Plan
from xds_server.core.policy import Policy
from xds_server.resources import snapshot
from xds_server.resources.capability import Capability
from xds_server.resources.clusters import cluster_resources
from xds_server.resources.endpoints import EndpointTable
from xds_server.resources.limits.admission import LimitTable
from xds_server.resources.limits.limit_routes import LimitRoutes
from xds_server.resources.listeners import listener_resources
from xds_server.resources.routing.route_table import RouteTable
from xds_server.resources.snapshot import Resource, Snapshot, TypeSnapshot


class PlanMismatchError(ValueError):
    """The plan speaks of other models, tiers or instances than the topology."""


class SnapshotBuilder:
    """Builds the snapshots of one topology, policy and capability.

    Not for use by two threads at once; the constructor may run in a thread of its own.
    """

    def __init__(self, topology: Topology, policy: Policy, capability: Capability) -> None:
        self._models = {model.name: model for model in topology.models}
        self._plans: dict[ModelName, ModelPlan] = {}
        has_limits = capability is not Capability.GRPC
        limits = LimitRoutes(topology) if has_limits else None
        self._routes = RouteTable(topology, policy.failures, capability, limits=limits)
        self._endpoints = {
            model.name: {
                tier.name: EndpointTable(model, tier, policy.rewrite)
                for tier in model.tiers
                if not tier.is_static
            }
            for model in topology.models
        }
        self._fixed = {
            snapshot.CLUSTER: _snapshot_of(
                snapshot.CLUSTER,
                cluster_resources(
                    topology.models,
                    policy.failures,
                    capability,
                    health=policy.health,
                    rewriting=policy.rewrite,
                    classes=topology.classes,
                ),
            ),
            snapshot.LISTENER: _snapshot_of(
                snapshot.LISTENER,
                [
                    *listener_resources(topology, policy, capability),
                    *(limits.gate_listeners(policy.evidence) if limits else ()),
                ],
            ),
        }
        self._limiters: Callable[[float], TypeSnapshot] | None = None
        if has_limits and (table := LimitTable(topology, policy.admission)):
            self._limiters = table.resources
            self._fixed[snapshot.EXTENSION_CONFIG] = table.resources(1.0)
        self._snapshot: Snapshot | None = None

    def build(self, plan: Plan) -> Snapshot:
        """Return the snapshot of a plan; the same object while nothing served changes.

        Raises:
            PlanMismatchError: the plan does not fit the topology. The next one that does sets everything.
        """
        for model_plan in plan.models:
            if self._plans.get(model_plan.name) is not model_plan:
                self._plans.pop(model_plan.name, None)
                self._apply(model_plan)
                self._plans[model_plan.name] = model_plan
        if len(plan.models) != len(self._models):
            missing = self._models.keys() - {model_plan.name for model_plan in plan.models}
            raise PlanMismatchError(f"plan without models {sorted(missing)}")
        return self._collect()

    def _apply(self, plan: ModelPlan) -> None:
        model = self._models.get(plan.name)
        if model is None:
            raise PlanMismatchError(f"plan for unknown model {plan.name}")
        expected, found = [t.name for t in model.tiers], [t.name for t in plan.tiers]
        if expected != found:
            raise PlanMismatchError(f"model {plan.name}: plan has tiers {found}, not {expected}")
        tables = self._endpoints[plan.name]
        for tier_plan in plan.tiers:
            table = tables.get(tier_plan.name)
            if table is None:
                continue
            try:
                table.apply(tier_plan)
            except LookupError as error:
                raise PlanMismatchError(f"tier {plan.name}/{tier_plan.name}: {error}") from None
        self._routes.apply(plan)

    def _collect(self) -> Snapshot:
        route = self._routes.resource()
        assignments = [
            table.resource() for tables in self._endpoints.values() for table in tables.values()
        ]
        before = self._snapshot
        if before is not None:
            old = before.types[snapshot.ENDPOINT].resources
            same_endpoints = all(old[each.name] is each for each in assignments)
            same_route = before.types[snapshot.ROUTE].resources[route.name] is route
            if same_endpoints and same_route:
                return before
        self._snapshot = Snapshot(
            {
                **self._fixed,
                snapshot.ENDPOINT: _snapshot_of(snapshot.ENDPOINT, assignments),
                snapshot.ROUTE: _snapshot_of(snapshot.ROUTE, [route]),
            },
            self._limiters,
        )
        return self._snapshot


def _snapshot_of(type_url: str, resources: Iterable[Resource]) -> TypeSnapshot:
    return TypeSnapshot(type_url, {each.name: each for each in resources})
