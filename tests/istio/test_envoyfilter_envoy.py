"""The clusters of our EnvoyFilter in a real Envoy 1.40, with istiod's part played by files."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.envoy import RealEnvoy, running_envoy, validate
from tests.fakes.istio_patches import patched
from tests.fakes.named_backend import named_backends
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT
from tests.xds.wire import serving
from xds_server.core.model import Topology
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import Policy
from xds_server.istio.cluster_names import MeshCluster
from xds_server.istio.envoyfilter import envoy_filter
from xds_server.istio.mesh_endpoints import with_mesh_endpoints
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.xds.cache import SnapshotCache

pytestmark = pytest.mark.envoy
CLUSTER = MeshCluster("vllm-70b.ai.svc.cluster.local", 8000)
ALIASES = {"chat/primary": (CLUSTER.name,)}
CDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
EDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class Mesh:
    """A sidecar whose istiod is a folder, and our server beside it."""

    def __init__(self, directory: Path, topology: Topology, istiods: int, port: int) -> None:
        self.directory = directory
        self.topology = topology
        self.cache = SnapshotCache()
        self.port = port
        self._istiods = istiods
        self._builders = {
            each: with_mesh_endpoints(SnapshotBuilder, lambda: ALIASES)(topology, Policy(), each)
            for each in (Capability.COMPOSITE, Capability.AGGREGATE)
        }
        self.envoy: RealEnvoy
        self.session: aiohttp.ClientSession
        self.base = ""

    def publish(
        self,
        weights: Mapping[str, int] | None = None,
        health: Mapping[str, EndpointHealth] | None = None,
    ) -> None:
        plan = a_plan(self.topology, weights=weights, health=health)
        for capability, builder in self._builders.items():
            self.cache.publish(capability, builder.build(plan))

    def write_clusters(self, **changes: Any) -> None:
        """Let istiod send its clusters, patched; `changes` are made to those of the filter."""
        endpoints = self.directory / "eds.json"
        _replace(endpoints, {"resources": [_assignment(CLUSTER.name, self._istiods)]})
        own = {
            "name": CLUSTER.name,
            "type": "EDS",
            "connect_timeout": "1s",
            "eds_cluster_config": {
                "service_name": CLUSTER.name,
                "eds_config": {
                    "resource_api_version": "V3",
                    "path_config_source": {"path": str(endpoints)},
                },
            },
        }
        made = patched(a_filter(f"127.0.0.1:{self.port}"), [own])
        for each in made:
            if each["name"] == CLUSTER.fleet:
                each.update(changes)
        _replace(
            self.directory / "cds.json", {"resources": [{"@type": CDS, **each} for each in made]}
        )

    async def ask(self, count: int = 1) -> Counter[str]:
        """Return how many requests each backend answered."""
        answers: Counter[str] = Counter()
        for _ in range(count):
            async with self.session.get(self.base) as answer:
                answers[await answer.text() if answer.status == 200 else str(answer.status)] += 1
        return answers

    async def answers(self, *names: str) -> bool:
        found = await self.ask(5)
        assert set(found) <= set(names), found
        return True


def a_filter(target: str, **options: Any) -> dict[str, Any]:
    about = {"name": "fleet-xds", "namespace": "ai", "labels": {"app": "client"}, "failures": 3}
    return envoy_filter([CLUSTER], target=target, **(about | options))


def _assignment(name: str, port: int) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    endpoint = {"endpoint": {"address": address}}
    return {"@type": EDS, "cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}


def _replace(path: Path, document: Any) -> None:
    """Envoy watches for moves into place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document))
    fresh.rename(path)


def _bootstrap(directory: Path) -> dict[str, Any]:
    http = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": CLUSTER.name}}
    host = {"name": CLUSTER.host, "domains": ["*"], "routes": [route]}
    manager = {
        "@type": f"{http}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "outbound",
        "route_config": {"name": "8000", "validate_clusters": False, "virtual_hosts": [host]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{http}.http.router.v3.Router"},
            }
        ],
    }
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    return {
        "stats_flush_on_admin": True,
        "node": {"id": "sidecar~127.0.0.9~client-0.ai~ai.svc.cluster.local", "cluster": "client"},
        "dynamic_resources": {
            "cds_config": {
                "resource_api_version": "V3",
                "path_config_source": {"path": str(directory / "cds.json")},
            }
        },
        "static_resources": {
            "listeners": [
                {"name": "out", "address": address, "filter_chains": [{"filters": [chain]}]}
            ]
        },
    }


@asynccontextmanager
async def mesh(directory: Path, *, with_server: bool = True) -> AsyncIterator[Mesh]:
    """A sidecar, two instances of ours, and what istiod knows of the same service."""
    async with AsyncExitStack() as stack:
        backends = await stack.enter_async_context(named_backends("a", "b", "istiod"))
        ours = [each.port for each in backends[:2]]
        model = a_model(tiers=[a_tier("primary", "70b", ours), a_static_tier()])
        topology = a_topology(model)
        (directory / "mesh").mkdir()
        lab = Mesh(directory / "mesh", topology, backends[2].port, free_port())
        lab.publish()
        if with_server:
            await stack.enter_async_context(serving(lab.cache, port=lab.port))
        lab.write_clusters()
        lab.session = await stack.enter_async_context(aiohttp.ClientSession())
        lab.envoy = await stack.enter_async_context(
            running_envoy(_bootstrap(lab.directory), directory / "envoy")
        )
        lab.base = f"http://127.0.0.1:{await lab.envoy.listener_port('out')}/v1/chat/completions"
        yield lab


async def test_a_sidecar_obeys_our_weights_and_follows_them(tmp_path):
    async with mesh(tmp_path) as lab:
        await lab.envoy.until(lambda: lab.answers("a", "b"))
        for share in (3, 1, 9):
            lab.publish(weights={"primary-0": 100 * share, "primary-1": 100})

            async def is_weighed(share: int = share) -> bool:
                hosts = (await lab.envoy.clusters())[CLUSTER.fleet]
                return [each["weight"] for each in hosts] == [100 * share, 100]

            await lab.envoy.until(is_weighed)
            found = await lab.ask(200)
            assert set(found) == {"a", "b"}
            assert abs(found["a"] - 200 * share / (share + 1)) <= 6, found
        assert await lab.envoy.rejected() == {}


async def test_an_absent_server_costs_a_start_three_seconds_and_no_request(tmp_path):
    async with mesh(tmp_path, with_server=False) as lab:
        assert await lab.ask(20) == {"istiod": 20}
        assert await lab.envoy.stat(f"cluster.{CLUSTER.fleet}.init_fetch_timeout") == 1
        page = await lab.envoy.get_json("/stats?format=json&filter=initialization_time")
        (times,) = page["stats"][0]["histograms"]["computed_quantiles"]
        took_ms = max(each["cumulative"] for each in times["values"])
        assert 2900 <= took_ms < 6000, "3 s for our endpoints, hardly more for the rest"
        async with serving(lab.cache, port=lab.port):
            await lab.envoy.until(lambda: lab.answers("a", "b"), timeout_s=40)
        assert await lab.envoy.rejected() == {}


async def test_endpoints_outlive_the_server_and_a_changed_cluster_falls_back_meanwhile(tmp_path):
    async with mesh(tmp_path, with_server=False) as lab:
        async with serving(lab.cache, port=lab.port):
            await lab.envoy.until(lambda: lab.answers("a", "b"), timeout_s=40)
        assert set(await lab.ask(20)) == {"a", "b"}, "it keeps what it has"
        # istiod sends the cluster changed: now there is nothing to keep.
        started = time.monotonic()
        lab.write_clusters(connect_timeout="2s")
        wrong: Counter[str] = Counter()
        while "istiod" not in (found := await lab.ask(5)):
            wrong += found
            assert time.monotonic() - started < PATIENCE_S
        assert set(wrong) <= {"a", "b"}, "no request was lost on the way"
        timeouts = await lab.envoy.stat(f"cluster.{CLUSTER.fleet}.init_fetch_timeout")
        assert timeouts == 2, "at the start, and now"
        assert await lab.ask(10) == {"istiod": 10}


async def test_an_endpoint_of_ours_that_is_drained_gets_nothing_and_the_mesh_takes_over_from_all(
    tmp_path,
):
    async with mesh(tmp_path) as lab:
        await lab.envoy.until(lambda: lab.answers("a", "b"))
        lab.publish(health={"primary-1": EndpointHealth.DRAINING})
        await lab.envoy.until(lambda: lab.answers("a"))
        drained = dict.fromkeys(("primary-0", "primary-1"), EndpointHealth.DRAINING)
        lab.publish(health=drained)
        await lab.envoy.until(lambda: lab.answers("istiod"))
        lab.publish()
        await lab.envoy.until(lambda: lab.answers("a", "b"))


async def test_a_cluster_that_we_do_not_know_falls_back_at_once(tmp_path):
    async with mesh(tmp_path, with_server=False) as lab:
        empty = SnapshotCache()
        plan = a_plan(lab.topology)
        for each in (Capability.COMPOSITE, Capability.AGGREGATE):
            empty.publish(each, SnapshotBuilder(lab.topology, Policy(), each).build(plan))
        async with serving(empty, port=lab.port):
            assert await lab.ask(10) == {"istiod": 10}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plaintext"),
        pytest.param({"tls_ca_file": str(ROOT / "tests/data/tls/cert.pem")}, id="TLS"),
        pytest.param({"mesh_tls": True}, id="mesh TLS"),
    ],
)
async def test_envoy_accepts_every_form_of_the_clusters(tmp_path, options):
    added = [
        each
        for each in patched(a_filter("fleet-xds.ai.svc:18000", **options), [])
        if each["name"] != CLUSTER.own
    ]
    grpc = {"http2_protocol_options": {}}
    protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    sds = {
        "name": "sds-grpc",
        "type": "STATIC",
        "typed_extension_protocol_options": {
            protocol: {"@type": f"type.googleapis.com/{protocol}", "explicit_http_config": grpc}
        },
    }
    document = {
        "node": {"id": "a", "cluster": "b"},
        "static_resources": {"clusters": [sds, *added]},
    }
    assert await validate(document, tmp_path) == ""
