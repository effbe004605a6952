"""Our EnvoyFilter applied by a real istiod to a real Envoy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.empty_kube import empty_kube
from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.istio_patches import patched
from tests.fakes.mesh_lab import BIG, service, written
from tests.fakes.named_backend import named_backends
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED, RealIstiod, free_ports, real_istiod
from tests.xds.wire import serving
from xds_server.core.policy import Policy
from xds_server.istio.cluster_names import MeshCluster
from xds_server.istio.envoyfilter import envoy_filter
from xds_server.istio.mesh_endpoints import with_mesh_endpoints
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.xds.cache import SnapshotCache

pytestmark = [pytest.mark.envoy, pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)]
HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def bootstrap(istiod: RealIstiod, *, delta: bool) -> dict[str, Any]:
    """A sidecar without iptables: istiod binds real listeners for it (INTERCEPTION_MODE NONE)."""
    ads = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    address = {"socket_address": {"address": "127.0.0.1", "port_value": istiod.xds}}
    return {
        "node": {
            "id": "sidecar~127.0.0.9~client-0.ai~ai.svc.cluster.local",
            "cluster": "client.ai",
            "metadata": {
                "ISTIO_VERSION": "1.31.0",
                "NAMESPACE": "ai",
                "LABELS": {"app": "client"},
                "CLUSTER_ID": "Kubernetes",
                "INTERCEPTION_MODE": "NONE",
            },
        },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC" if delta else "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {
            "clusters": [
                {
                    "name": "xds-grpc",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "typed_extension_protocol_options": {
                        HTTP2: {
                            "@type": f"type.googleapis.com/{HTTP2}",
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "xds-grpc",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
                    },
                }
            ]
        },
    }


async def asked(port: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    async with aiohttp.ClientSession(headers={"host": BIG}) as session:
        for _ in range(count):
            async with session.get(f"http://127.0.0.1:{port}/v1/models") as answer:
                text = await answer.text()
                found[text if answer.status == 200 else str(answer.status)] += 1
    return found


async def clusters_of(envoy: RealEnvoy) -> dict[str, dict[str, Any]]:
    page = await envoy.config_dump("dynamic_active_clusters")
    return {each["cluster"]["name"]: each["cluster"] for each in page["configs"]}


@pytest.mark.parametrize("delta", [True, False], ids=["DELTA_GRPC", "GRPC"])
async def test_istiod_makes_of_our_filter_what_we_think_and_a_sidecar_obeys_our_weights(
    tmp_path: Path, delta: bool
) -> None:
    (port,) = free_ports(1)
    (ours,) = free_ports(1)
    at = MeshCluster(BIG, port)
    async with (
        named_backends("a", "b", "istiod") as (a, b, istiods),
        empty_kube() as kube,
    ):
        topology = a_topology(
            a_model(tiers=[a_tier("primary", "70b", [a.port, b.port]), a_static_tier()])
        )
        aliases = {"chat/primary": (at.name,)}
        builders = {
            each: with_mesh_endpoints(SnapshotBuilder, lambda: aliases)(topology, Policy(), each)
            for each in (Capability.COMPOSITE, Capability.AGGREGATE)
        }
        cache = SnapshotCache()

        def publish(*weights: int) -> None:
            named = {f"primary-{index}": each for index, each in enumerate(weights)}
            for capability, builder in builders.items():
                cache.publish(capability, builder.build(a_plan(topology, weights=named)))

        publish(300, 100)
        made = envoy_filter(
            [at],
            name="fleet-xds",
            namespace="ai",
            target=f"127.0.0.1:{ours}",
            labels={"app": "client"},
            failures=3,
        )
        services = tmp_path / "services"
        the_service = service(BIG, "127.0.0.1", port, istiods.port)
        written(services, the_service, made)
        sources = [f"fs://{services}"]
        async with real_istiod(
            tmp_path / "istiod", sources=sources, kubeconfig=kube.kubeconfig(tmp_path)
        ) as istiod:
            sidecar = running_envoy(bootstrap(istiod, delta=delta), tmp_path / "envoy")
            async with sidecar as envoy:
                # We are not there yet.
                assert await asked(port, 10) == {"istiod": 10}
                async with serving(cache, port=ours):

                    async def is_taken_over() -> bool:
                        return set(await asked(port, 4)) <= {"a", "b"}

                    await envoy.until(is_taken_over, timeout_s=40)
                    found = await asked(port, 200)
                    assert abs(found["a"] - 150) <= 6, found
                    publish(100, 100)

                    async def is_even() -> bool:
                        return abs((await asked(port, 40))["a"] - 20) <= 2

                    await envoy.until(is_even)
                    active = await clusters_of(envoy)
                    assert {at.name, at.fleet, at.own} <= set(active)
                    assert active[at.own]["eds_cluster_config"]["service_name"] == at.name
                    assert active[at.own]["eds_cluster_config"]["eds_config"]["ads"] == {}
                    expected = {each["name"]: each for each in patched(made, [])}
                    chain = active[at.name]["cluster_type"]["typed_config"]["clusters"]
                    assert chain == [at.fleet, at.own]
                    assert (
                        active[at.fleet]["outlier_detection"]["consecutive_5xx"]
                        == expected[at.fleet]["outlier_detection"]["consecutive_5xx"]
                    )
                    # The admin's rules for the host change istiod's own cluster, and no other.
                    rule = {
                        "apiVersion": "networking.istio.io/v1",
                        "kind": "DestinationRule",
                        "metadata": {"name": "big", "namespace": "ai"},
                        "spec": {
                            "host": BIG,
                            "trafficPolicy": {"connectionPool": {"tcp": {"connectTimeout": "7s"}}},
                        },
                    }
                    written(services, the_service, made, rule)

                    async def is_ruled() -> bool:
                        now = await clusters_of(envoy)
                        return now[at.own]["connect_timeout"] == "7s"

                    await envoy.until(is_ruled)
                    assert set(await asked(port, 20)) == {"a", "b"}
                assert set(await asked(port, 20)) == {"a", "b"}, "we are gone, it goes on"
                written(services, the_service, rule)

                async def is_istiods() -> bool:
                    return await asked(port, 4) == {"istiod": 4}

                await envoy.until(is_istiods)
                assert at.fleet not in await clusters_of(envoy)
                assert await envoy.rejected() == {}
