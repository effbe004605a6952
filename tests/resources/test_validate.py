"""Envoy itself reads every resource, exactly as served, and has nothing to say against it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.bootstrap.internal_listener.v3 import (
    internal_listener_pb2,  # noqa: F401 - ParseDict finds it by name
)
from envoy.extensions.config.validators.minimum_clusters.v3 import (
    minimum_clusters_pb2,  # noqa: F401
)
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
from google.protobuf.json_format import ParseDict

from tests.fakes.envoy import validate
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.limits import Limit, Tenant, TenantName, Tenants
from xds_server.core.model import (
    Affinity,
    AffinityPolicy,
    ClassName,
    RequestClass,
    StaticAnswer,
    StaticTemplate,
    Telemetry,
    WhenCritical,
)
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import FailurePolicy, HealthPolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.render import render

pytestmark = pytest.mark.envoy

LONG = StaticAnswer(
    status=503,
    body={"choices": [{"message": {"content": "ü" * 9000}}, {"text": "%REQ(x)% 100%"}]},
    retry_after_s=0,
)
TEMPLATES = replace(
    LONG,
    templates=tuple(
        StaticTemplate(
            name=f"t{each}",
            answer=LONG if each % 2 else StaticAnswer(body=LONG.body),
            keywords=tuple(f"schlüssel {each} {number} %*" for number in range(8)),
            classes=tuple(ClassName(f"a-long.name_of-a-class{number}") for number in range(20)),
            languages=(
                "de",
                "pt-BR",
                "zh-Hant-TW",
                *(f"x{number}-aaaaaaaa" for number in range(20)),
            ),
        )
        for each in range(8)
    ),
)


def limited(*, hashed):
    """Limits of everything that can have one, as large and as small as they may be."""
    tiny, huge = Limit(requests_per_second=0.001), Limit(tokens_per_second=1e9)
    full = Limit(requests_per_second=1e9, tokens_per_second=0.5, concurrency=1, queue=0)
    tiers = [
        replace(a_tier("p", "m", [1]), limit=full, affinity=Affinity(header="x-session-id")),
        replace(a_tier("q", "n", [2]), limit=Limit(concurrency=10**6, queue=10**6)),
        a_static_tier(),
    ]
    chat = replace(a_model("chat", tiers=tiers), limit=tiny)
    code = replace(a_model("a/b c-100%", prefix="/code/"), limit=huge, names=("c",))
    rows = (Tenant(name=TenantName("a"), key='%REQ(x)% "', limit=tiny),)
    tenants = Tenants(header="x-tenant", hashed=hashed, listed=rows, others=huge, missing=tiny)
    classes = (
        RequestClass(name=ClassName("a"), header="x-a", quota_ratio=0.001, header_timeout_s=2.0),
        RequestClass(name=ClassName("b"), quota_ratio=0.999, retries=3),
    )
    return replace(a_topology(chat, code), tenants=tenants, classes=classes)


TOPOLOGIES = {
    "one model": a_topology(),
    "several models": a_topology(
        a_model("chat", domains=["a.example", "*.example"]),
        a_model("a/b c-100%", domains=["a.example"], prefix="/"),
        a_model("code", prefix="/code/"),
    ),
    "five tiers": a_topology(
        a_model(tiers=[*(a_tier(f"t{i}", f"m{i}", [i + 1]) for i in range(4)), a_static_tier()])
    ),
    "no endpoints": a_topology(a_model(tiers=[a_tier("primary", "m", []), a_static_tier()])),
    "only static": a_topology(a_model(tiers=[a_static_tier(LONG)])),
    "told apart by bodies": replace(
        a_topology(
            replace(a_model("one"), names=("one", "Größe/✓", "100%")),
            replace(a_model("two"), names=("two",)),
            replace(a_model("deep", prefix="/v1/deep/"), names=("one",), is_default=True),
        ),
        lists_models=True,
    ),
    "classes": replace(
        a_topology(a_model(), replace(a_model("named", prefix="/n/"), names=("n",))),
        classes=(
            RequestClass(name=ClassName("a"), header="x-a", value="1%", header_timeout_s=2.0),
            RequestClass(name=ClassName("b"), prefix="/v1/b", header="x-b", retries=1),
            RequestClass(name=ClassName("c"), retries=3, when_critical=WhenCritical.REJECT),
        ),
    ),
    "limits": limited(hashed=False),
    "limits of hashed tenants": limited(hashed=True),
    "sessions and reports": a_topology(
        a_model(
            tiers=[
                replace(
                    a_tier("p", "m", [1, 2]),
                    affinity=Affinity(policy=AffinityPolicy.RING_HASH, header="x-session-id"),
                    health_path="/ping",
                    telemetry=Telemetry.ORCA,
                ),
                replace(a_tier("q", "n", [3]), affinity=Affinity(header="x-session-id")),
                a_static_tier(),
            ]
        )
    ),
    "templates": a_topology(a_model(tiers=[a_tier("p", "m", [1]), a_static_tier(TEMPLATES)])),
    "a long answer": a_topology(a_model(tiers=[a_tier("p", "m", [1]), a_static_tier(LONG)])),
}
POLICIES = {
    "plain answers": Policy(failures=FailurePolicy(answer_timeout_s=120.0)),
    "checked": Policy(health=HealthPolicy(active=True)),
    "extremes": Policy(
        health=HealthPolicy(active=True, interval_s=0.001, timeout_s=0.001, unhealthy=1, healthy=1),
        failures=FailurePolicy(
            consecutive=1, header_timeout_s=0.001, token_stall_s=0.0, static_on_5xx=False
        ),
    ),
}


def snapshot_of(topology, capability, policy, split=None):
    names = [instance.id for _, _, instance in topology.instances()]
    numbers = {
        "rules": ["kv_pressure", "5% over"],
        "weights": dict.fromkeys(names, 2**40),
        "health": dict.fromkeys(names[:1], EndpointHealth.DRAINING),
    }
    return SnapshotBuilder(topology, policy, capability).build(a_plan(topology, split, **numbers))


def as_static(snapshot):
    """Put every served byte into one static bootstrap, which Envoy checks without a control plane."""
    config = ParseDict(
        bootstrap(node_id="n", cluster="c", xds_host="127.0.0.1", xds_port=1), Bootstrap()
    )
    for resource in snapshot.of_type(served.CLUSTER).resources.values():
        config.static_resources.clusters.add().ParseFromString(resource.body)
    for name, resource in snapshot.of_type(served.ENDPOINT).resources.items():
        # Assignments are only checked inside a cluster.
        cluster = config.static_resources.clusters.add(name=f"check/{name}")
        cluster.type = Cluster.STATIC
        cluster.connect_timeout.FromSeconds(1)
        cluster.load_assignment.ParseFromString(resource.body)
        cluster.load_assignment.cluster_name = cluster.name
    for resource in snapshot.of_type(served.LISTENER).resources.values():
        listener = config.static_resources.listeners.add()
        listener.ParseFromString(resource.body)
        typed_config = listener.filter_chains[0].filters[0].typed_config
        manager = HttpConnectionManager.FromString(typed_config.value)
        if manager.HasField("rds"):
            route = snapshot.of_type(served.ROUTE).resources["llm"]
            manager.route_config.ParseFromString(route.body)
        for each in manager.http_filters:
            if each.HasField("config_discovery"):
                limiter = snapshot.of_type(served.EXTENSION_CONFIG).resources[each.name]
                each.typed_config.CopyFrom(
                    TypedExtensionConfig.FromString(limiter.body).typed_config
                )
        typed_config.value = manager.SerializeToString()
    return config.SerializeToString()


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
async def test_envoy_accepts_every_resource(tmp_path, topology, capability):
    snapshot = snapshot_of(topology, capability, Policy())
    assert await validate(as_static(snapshot), tmp_path) == ""


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
async def test_envoy_accepts_every_policy(tmp_path, policy):
    snapshot = snapshot_of(a_topology(), Capability.COMPOSITE, policy, [0, 1, 0])
    assert await validate(as_static(snapshot), tmp_path) == ""


async def test_envoy_accepts_the_clusters_of_grpc_clients(tmp_path):
    snapshot = snapshot_of(a_topology(), Capability.GRPC, Policy())
    snapshot.types.pop(served.LISTENER)  # Envoy serves no api_listener
    assert await validate(as_static(snapshot), tmp_path) == ""


async def test_the_check_would_notice_a_mistake(tmp_path):
    snapshot = snapshot_of(a_topology(), Capability.COMPOSITE, Policy())
    config = Bootstrap.FromString(as_static(snapshot))
    config.static_resources.clusters[1].outlier_detection.max_ejection_percent.value = 101
    assert "MaxEjectionPercent" in await validate(config.SerializeToString(), tmp_path)


async def test_rendered_resources_can_be_pasted_into_a_configuration(tmp_path):
    snapshot = snapshot_of(TOPOLOGIES["several models"], Capability.COMPOSITE, Policy())
    page = render(snapshot)
    config = bootstrap(node_id="n", cluster="c", xds_host="127.0.0.1", xds_port=1)
    config["static_resources"]["clusters"] += [
        each["resource"] for each in page["clusters"]["resources"].values()
    ]
    config["static_resources"]["listeners"] = [
        each["resource"] for each in page["listeners"]["resources"].values()
    ]
    assert await validate(config, tmp_path) == ""
