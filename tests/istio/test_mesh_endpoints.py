"""Our endpoints under the mesh's names: the same numbers, and nothing for those who do not ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from tests.fakes.plans import a_plan, a_topology
from tests.xds.wire import RawStream, serving
from xds_server.config.load import load_file
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import Policy
from xds_server.istio.cluster_names import MeshCluster
from xds_server.istio.mesh import Mesh, MeshNow, mesh_of
from xds_server.istio.mesh_clusters import aliases_of, following, mesh_cluster
from xds_server.istio.mesh_endpoints import with_mesh_endpoints
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import ClusterLoadAssignment
from xds_server.resources.snapshot import ENDPOINT
from xds_server.xds.cache import SnapshotCache

HOST = "vllm-70b.ai.svc.cluster.local"
NAMES = (f"outbound|8000||{HOST}", f"outbound|8000|v1|{HOST}")
TOPOLOGY = a_topology()


def a_builder(*pairs: tuple[str, str], capability: Capability = Capability.AGGREGATE):
    aliases = {tier: (name,) for tier, name in pairs} or {"chat/primary": NAMES}
    make = with_mesh_endpoints(SnapshotBuilder, lambda: aliases)
    return make(TOPOLOGY, Policy(), capability)


def assignment(snapshot, name: str):
    return ClusterLoadAssignment.FromString(snapshot.of_type(ENDPOINT).resources[name].body)


def test_a_tier_is_served_under_every_name_that_the_mesh_has_for_it():
    plan = a_plan(
        TOPOLOGY,
        weights={"chat-primary-0": 700, "chat-primary-1": 300},
        health={"chat-primary-1": EndpointHealth.DRAINING},
    )
    snapshot = a_builder().build(plan)
    own = assignment(snapshot, "chat/primary")
    for name in NAMES:
        named = assignment(snapshot, name)
        assert named.cluster_name == name
        assert list(named.endpoints) == list(own.endpoints)
        assert named.policy == own.policy


def test_a_weight_that_moves_makes_new_copies_of_its_tier_and_of_no_other():
    builder = a_builder(
        ("chat/primary", NAMES[0]), ("chat/fallback", "outbound|8000||vllm-8b.ai.svc.cluster.local")
    )
    before = builder.build(a_plan(TOPOLOGY))
    after = builder.build(a_plan(TOPOLOGY, weights={"chat-primary-0": 5}))
    old, new = (each.of_type(ENDPOINT).resources for each in (before, after))
    assert {name for name in new if new[name] is not old[name]} == {"chat/primary", NAMES[0]}
    assert new[NAMES[0]].version != old[NAMES[0]].version


def test_a_plan_that_changes_nothing_served_gives_the_same_snapshot():
    builder = a_builder()
    assert builder.build(a_plan(TOPOLOGY)) is builder.build(a_plan(TOPOLOGY))


def test_what_is_no_endpoint_stays_as_it_is():
    plan = a_plan(TOPOLOGY)
    plain = SnapshotBuilder(TOPOLOGY, Policy(), Capability.AGGREGATE).build(plan)
    named = a_builder().build(plan)
    for url, types in plain.types.items():
        if url != ENDPOINT:
            assert named.of_type(url).version == types.version
    assert plain.of_type(ENDPOINT).resources.keys() == named.of_type(
        ENDPOINT
    ).resources.keys() - set(NAMES)


def test_a_tier_without_endpoints_of_its_own_has_no_copy():
    snapshot = a_builder(("chat/static", NAMES[0])).build(a_plan(TOPOLOGY))
    assert NAMES[0] not in snapshot.of_type(ENDPOINT).resources


def test_names_of_a_new_configuration_are_served_with_the_same_plan():
    names: dict[str, tuple[str, ...]] = {}
    builder = with_mesh_endpoints(SnapshotBuilder, lambda: names)(
        TOPOLOGY, Policy(), Capability.COMPOSITE
    )
    plan = a_plan(TOPOLOGY)
    assert NAMES[0] not in builder.build(plan).of_type(ENDPOINT).resources
    names = {"chat/primary": (NAMES[0],)}
    first = builder.build(plan)
    assert NAMES[0] in first.of_type(ENDPOINT).resources
    assert builder.build(plan) is first
    names = {"chat/fallback": (NAMES[1],)}
    assert set(builder.build(plan).of_type(ENDPOINT).resources) - {NAMES[1]} == {
        "chat/primary",
        "chat/fallback",
    }
    assert set(builder._copies) == {NAMES[1]}, "a configuration of the past costs nothing"


def test_the_names_are_those_of_the_tiers_that_have_a_port():
    config = load_file(Path(__file__).parent / "mesh.yaml")
    mesh = mesh_of(config.istio, config.topology)
    names = aliases_of(mesh)
    assert names["chat/primary"] == ("outbound|8000||vllm-70b.ai.svc.cluster.local",)
    assert set(names) == {"chat/primary", "chat/fallback", "chat/static"}
    bare = replace(mesh.models[0].tiers[0], port=None, subset="v1")
    assert mesh_cluster(bare) is None
    assert mesh_cluster(replace(bare, port=80)) == MeshCluster(bare.host, 80, "v1")
    cut = Mesh(models=(replace(mesh.models[0], tiers=(bare,)),))
    assert aliases_of(cut) == {}
    seen = [mesh]
    now = following(lambda: seen[0])
    assert now() is now()
    assert now() == names
    seen[0] = cut
    assert now() == {}


def test_the_mesh_is_worked_out_anew_only_for_another_configuration_or_topology():
    config = load_file(Path(__file__).parent / "mesh.yaml")
    assert config.istio is not None
    section, topology = [config.istio], [config.topology]
    now = MeshNow(lambda: section[0], lambda: topology[0])
    first = now()
    assert first == mesh_of(config.istio, config.topology)
    assert now() is first
    topology[0] = replace(config.topology)  # an instance came, say: no other mesh
    assert now() is first
    topology[0] = replace(config.topology, models=())
    assert now() == Mesh()
    topology[0] = config.topology
    section[0] = config.istio.model_copy(update={"models": ()})
    assert now() == Mesh()
    section[0] = None
    assert now() == Mesh()
    section[0] = config.istio
    assert now() == first


@pytest.mark.parametrize("method", ["StreamEndpoints", "DeltaEndpoints"])
async def test_a_sidecar_that_asks_for_the_name_gets_the_endpoints_and_every_move(method):
    cache = SnapshotCache()
    builder = a_builder()
    cache.publish(Capability.AGGREGATE, builder.build(a_plan(TOPOLOGY)))
    path = f"/envoy.service.endpoint.v3.EndpointDiscoveryService/{method}"
    async with (
        serving(cache) as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel, path) as stream,
    ):
        stream.node = {"id": "sidecar~10.0.0.9~client-0.ai~ai.svc.cluster.local"}
        await stream.ask(ENDPOINT, [NAMES[0]])
        first = await stream.response()
        await stream.ask(ENDPOINT, [NAMES[0]] if "Stream" in method else [], nonce=first.nonce)
        cache.publish(
            Capability.AGGREGATE,
            builder.build(a_plan(TOPOLOGY, weights={"chat-primary-0": 42})),
        )
        second = await stream.response()
        weights = []
        for response in (first, second):
            assert len(response.resources) == 1
            each = response.resources[0]
            body = each.value if "Stream" in method else each.resource.value
            table = ClusterLoadAssignment.FromString(body)
            assert table.cluster_name == NAMES[0]
            weights.append(table.endpoints[0].lb_endpoints[0].load_balancing_weight.value)
        assert weights == [1000, 42]
