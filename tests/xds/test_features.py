"""The list of what a proxy may lack keeps up with what is generated."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.limits import Limit
from xds_server.core.model import ClassName, RequestClass
from xds_server.core.policy import Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.xds.features import EXTENSIONS

EVERYWHERE = {
    "envoy.filters.http.buffer",
    "envoy.filters.http.router",
    "envoy.filters.http.upstream_codec",
    "envoy.filters.network.http_connection_manager",
    "envoy.retry_host_predicates.previous_hosts",
    "envoy.retry_priorities.previous_priorities",
}
"""What no build of Envoy goes without."""
ELSEWHERE = {"envoy.bootstrap.internal_listener", "envoy.filters.http.local_ratelimit"}
"""Named in the bootstrap, and known by its type alone."""


def test_every_extension_that_is_served_can_be_missed():
    limited = replace(a_tier("primary", "big", [1]), limit=Limit(requests_per_second=5.0))
    topology = replace(
        a_topology(a_model(tiers=[limited, a_static_tier()])),
        classes=(RequestClass(name=ClassName("rest"), retries=1),),
    )
    named = set()
    for capability in (Capability.COMPOSITE, Capability.AGGREGATE):
        snapshot = SnapshotBuilder(topology, Policy(), capability).build(a_plan(topology))
        for kind in snapshot.types.values():
            for each in kind.resources.values():
                found = re.findall(
                    rb"\x0a.(envoy\.(?!extensions)[a-z_]+\.[a-z_.]+)", each.body, re.DOTALL
                )
                named.update(name.decode() for name in found)
    assert "envoy.clusters.composite" in named, "the search finds something"
    assert named - EVERYWHERE == {each.name for each in EXTENSIONS} - ELSEWHERE
