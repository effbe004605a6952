"""EDS: the endpoints of a tier, with the weights and the health that the plan gives them.

Patched in place. An endpoint that may take nothing stays listed with that status: a removed one would
lose its streams' connections and its ejection.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from xds_server.core.model import Instance, InstanceId, Model, Tier
from xds_server.core.plan import EndpointHealth, InstancePlan, TierPlan
from xds_server.core.policy import RewritePolicy
from xds_server.resources import affinity, headers
from xds_server.resources.bodies import rewrite
from xds_server.resources.names import METADATA, cluster_name
from xds_server.resources.proto import (
    UINT32_MAX,
    ClusterLoadAssignment,
    LbEndpoint,
    serialize,
    typed,
)
from xds_server.resources.snapshot import Resource

HEALTH_STATUS = {
    EndpointHealth.HEALTHY: 1,
    EndpointHealth.UNHEALTHY: 2,
    EndpointHealth.DRAINING: 3,
}
"""`envoy.config.core.v3.HealthStatus`."""

OVERPROVISIONING = 1_000_000
"""Percent. With Envoy's 140, an aggregate chain passes requests on as soon as less than 71 % of a tier is well, on top
of what the control plane passes on for its lost capacity; so it keeps them while one endpoint is well."""

_Fact = tuple[int, int]


def author_endpoint(instance: Instance, *, serves: str, index: int, told: str = "") -> Any:
    """Author one endpoint of the tier at `index` of its chain: healthy, weight 1.

    `told` is its `rewrite.instruction`.
    """
    e, core = typed.endpoint, typed.core
    address = core.SocketAddress(address=instance.host, port_value=instance.port)
    facts = headers.tier_metadata(index=index, model=serves, instance=instance.id, rewrite=told)
    return e.LbEndpoint(
        endpoint=e.Endpoint(address=core.Address(socket_address=address)),
        health_status=core.HealthStatus.HEALTHY,
        metadata=headers.metadata(facts),
        load_balancing_weight=1,
    )


def author_assignment(name: str) -> Any:
    """Author a cluster's assignment with one locality, which gRPC reads only with a weight of its own."""
    e = typed.endpoint
    locality = e.LocalityLbEndpoints(locality=typed.core.Locality(), load_balancing_weight=1)
    policy = e.ClusterLoadAssignmentPolicy(overprovisioning_factor=OVERPROVISIONING)
    return e.ClusterLoadAssignment(cluster_name=name, endpoints=[locality], policy=policy)


@lru_cache(maxsize=16)
def _endpoint_shape(index: int) -> bytes:
    anyone = Instance(id=InstanceId("-"), host="0.0.0.0", port=1)
    return bytes(author_endpoint(anyone, serves="-", index=index))


@lru_cache(maxsize=1)
def _assignment_shape() -> bytes:
    return bytes(author_assignment(""))


class EndpointTable:
    """One tier's assignment. Not for use by two threads at once."""

    def __init__(self, model: Model, tier: Tier, policy: RewritePolicy) -> None:
        self.name = cluster_name(model.name, tier.name)
        self._table = ClusterLoadAssignment.FromString(_assignment_shape())
        self._table.cluster_name = self.name
        self._endpoints: dict[InstanceId, LbEndpoint] = {}
        self._facts: dict[InstanceId, _Fact] = {}
        self._plan: TierPlan | None = None
        self._resource: Resource | None = None
        if not tier.instances:
            del self._table.endpoints[:]
            return
        shape = LbEndpoint.FromString(_endpoint_shape(model.tiers.index(tier)))
        about = shape.metadata.filter_metadata[METADATA].fields
        about["model"].string_value = tier.serves
        told = rewrite.instruction(model, tier, policy)
        if told:
            about[rewrite.KEY].string_value = told
        listed = self._table.endpoints[0].lb_endpoints
        for instance in tier.instances:
            endpoint = listed.add()
            endpoint.CopyFrom(shape)
            address = endpoint.endpoint.address.socket_address
            address.address, address.port_value = instance.host, instance.port
            fields = endpoint.metadata.filter_metadata[METADATA].fields
            fields["instance"].string_value = instance.id
            if tier.affinity:
                affinity.set_key(endpoint, instance.id)
            self._endpoints[instance.id] = endpoint

    def apply(self, plan: TierPlan) -> None:
        """Set weights and health.

        Raises:
            LookupError: the plan has other instances than the tier. Call again with a fitting plan.
        """
        if plan is self._plan:
            return
        self._plan = None
        ceiling = UINT32_MAX // max(1, len(self._endpoints))
        facts, endpoints = self._facts, self._endpoints
        for each in plan.instances:
            fact = _fact(each, ceiling)
            if facts.get(each.id) == fact:
                continue
            endpoint = endpoints.get(each.id)
            if endpoint is None:
                raise LookupError(f"unknown instance {each.id}")
            endpoint.load_balancing_weight.value, endpoint.health_status = fact
            facts[each.id] = fact
            self._resource = None
        if len(plan.instances) != len(endpoints):
            missing = endpoints.keys() - {each.id for each in plan.instances}
            raise LookupError(f"no word on instances {sorted(missing)}")
        self._plan = plan

    def resource(self) -> Resource:
        """Return the assignment as it is now; the same object while nothing changes."""
        if self._resource is None:
            self._resource = Resource.of(self.name, serialize(self._table))
        return self._resource


def _fact(plan: InstancePlan, ceiling: int) -> _Fact:
    """Return weight and health: 0 is refused for the whole response, and only health stops requests."""
    status = HEALTH_STATUS[plan.health]
    if plan.health is not EndpointHealth.HEALTHY:
        return 1, status
    return min(max(1, plan.weight), ceiling), status
