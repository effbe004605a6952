"""Everything that shall be in the cluster, of a configuration and a plan. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xds_server.config.istio_schema import KubernetesSection, WeightPatch
from xds_server.core.model import Topology
from xds_server.core.plan import ModelPlan
from xds_server.core.policy import Policy
from xds_server.istio.kubernetes.change import Wanted
from xds_server.istio.kubernetes.objects import Owned, owned_objects, ref_of
from xds_server.istio.kubernetes.route_patch import Patched
from xds_server.istio.mesh import Mesh
from xds_server.istio.weights import weigh

NAMESPACE = "gpu-xds"
"""Of the lease, outside of a pod, where nobody says otherwise."""


def all_wanted(
    mesh: Mesh,
    plans: Sequence[ModelPlan],
    topology: Topology,
    policy: Policy,
    section: KubernetesSection,
    *,
    version: str,
    owner: str,
    before: Sequence[Wanted] = (),
) -> list[Wanted]:
    """Return it in the order in which it is to be written: first what routes go to.

    Args:
        mesh: All models that the mesh shall route.
        plans: The newest plan.
        topology: Where instances are.
        policy: When the mesh shall eject an endpoint of ours.
        section: What is patched.
        version: Of Istio's API.
        owner: See `objects.OWNER`.
        before: What was returned last; it saves work.
    """
    patched = {each.model for each in section.patch}
    ours = Mesh(models=tuple(each for each in mesh.models if each.model not in patched))
    return [
        *owned_objects(
            ours,
            plans,
            topology,
            policy,
            version=version,
            owner=owner,
            before=[each for each in before if isinstance(each, Owned)],
        ),
        *_patches(mesh, plans, section.patch, version),
    ]


def _patches(
    mesh: Mesh, plans: Sequence[ModelPlan], patches: Sequence[WeightPatch], version: str
) -> list[Patched]:
    by_model = {str(each.name): each for each in plans}
    found = []
    for each in patches:
        plan = by_model.get(each.model)
        model = None if plan is None else mesh.model(plan.name)
        if plan is None or model is None:
            continue
        # One route has one set of weights: those of all classes together.
        weights = weigh(replace(plan, classes=()), model)
        ref = ref_of("virtualservices", each.namespace, each.virtual_service, version=version)
        found.append(Patched(ref=ref, model=plan.name, route=each.route, weights=weights))
    return found
