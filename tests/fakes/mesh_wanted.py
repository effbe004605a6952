"""What shall be in a cluster for the configurations of `mesh_config`."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.mesh_config import NAMESPACE, mesh_config
from xds_server.config.config import Config
from xds_server.config.load import load_text
from xds_server.core.inputs import Drain
from xds_server.core.model import InstanceId
from xds_server.core.plan import Plan
from xds_server.fleet import Fleet
from xds_server.istio.kubernetes.change import Wanted
from xds_server.istio.kubernetes.wanted import all_wanted
from xds_server.istio.mesh import mesh_of


def wanted(
    *drained: str, classes: Any = None, version: str = "v1", **sections: Any
) -> tuple[list[Wanted], Config, Plan]:
    """Return everything that shall be there, some instances drained, and what it was made of."""
    document = mesh_config(**{"kubernetes": {}, **sections})
    if classes:
        document["classes"] = classes
    config = load_text(json.dumps(document))
    fleet = Fleet(config.topology, config.policy, 0.0)
    drains = [
        Drain(instance=InstanceId(name), draining=True, who="ann", why="test") for name in drained
    ]
    plan = fleet.evaluate(drains, 0.0)
    assert config.istio is not None
    assert config.istio.kubernetes is not None
    found = all_wanted(
        mesh_of(config.istio, config.topology),
        plan.models,
        config.topology,
        config.policy,
        config.istio.kubernetes,
        version=version,
        owner="gpu-xds.gpu-xds-istio",
    )
    return found, config, plan


def of_the_admin(*routes: dict[str, Any]) -> dict[str, Any]:
    """Return the VirtualService of a mesh admin for the host that clients call."""
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "llm", "namespace": NAMESPACE},
        "spec": {"hosts": [f"llm.{NAMESPACE}.svc.cluster.local"], "http": list(routes)},
    }
