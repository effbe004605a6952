"""The real server against an API server: what happens in the fleet arrives in the mesh's objects."""

from __future__ import annotations

import asyncio
import signal
import time

import grpc.aio  # noqa: F401 - starts gRPC before processes are forked
import pytest

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.kube_api import Rule
from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.mesh_wanted import of_the_admin
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import running_server

INSTANCES = ("a100-0", "a100-1", "l4-0")


def weights(api, name="gpu-xds-chat", route=0):
    """Return the weights by service; empty while there is no such object."""
    key = ("networking.istio.io", "virtualservices", "ai", name)
    if key not in api.store.objects:
        return {}
    spec = api.store.objects[key]["spec"]
    return {
        each["destination"]["host"].partition(".")[0]: each.get("weight", 0)
        for each in spec["http"][route]["route"]
    }


@pytest.fixture
def config(api, tmp_path):
    def write(document=None, *, token="admin-token", name="config.yaml", **kubernetes):
        kubeconfig = api.kubeconfig(tmp_path / f"{name}.kubeconfig", token)
        section = {"kubeconfig": str(kubeconfig), "lease_s": 3, **kubernetes}
        return write_config(tmp_path / name, mesh_config(kubernetes=section, **(document or {})))

    return write


def lease(api):
    return api.object("leases", "gpu-xds", "gpu-xds-istio", "coordination.k8s.io")["spec"]


async def out_of_memory(agent):
    for name in ("a100-0", "a100-1"):
        await agent.report(name, state=pb.ENGINE_STATE_DOWN, out_of_memory=True)


async def greet(agent):
    await agent.greet(*INSTANCES)
    for name in INSTANCES:
        await agent.report(name)


async def test_an_out_of_memory_moves_the_weights_of_the_delegate(api, config, tmp_path):
    async with (
        running_server(config(), tmp_path / "state") as server,
        connected_agent(server.target) as agent,
    ):
        await greet(agent)
        await until(lambda: weights(api) == {"vllm-70b": 100, "vllm-8b": 0, "busy": 0})
        made = api.object("virtualservices", "ai", "gpu-xds-chat")
        assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpu-xds"
        assert "hosts" not in made["spec"]
        await asyncio.sleep(1.1)  # The object may be written again: what is measured is the way.
        await out_of_memory(agent)
        told = time.monotonic()
        await until(lambda: weights(api)["vllm-70b"] == 0)
        took = time.monotonic() - told
        assert sum(weights(api).values()) == 100
        assert took < 5.0
        assert await server.metric("fleet_kubernetes_leader") == 1
        assert await server.metric("fleet_kubernetes_writes_total") == len(
            api.writes("virtualservices")
        )
        rows = (await server.get_json("/api/events?kind=mesh"))["events"]
        assert {"istio_leadership_gained", "istio_object_written"} <= {
            each["name"] for each in rows
        }
    assert lease(api)["holderIdentity"] == "", "given back at the end"


ADMINS = of_the_admin(
    {"name": "probe", "match": [{"uri": {"exact": "/up"}}], "directResponse": {"status": 200}},
    {
        "name": "chat",
        "timeout": "60s",
        "route": [
            {"destination": {"host": "vllm-70b"}, "weight": 100},
            {"destination": {"host": "vllm-8b"}, "weight": 0},
            {"destination": {"host": "busy"}, "weight": 0},
        ],
    },
)
PATCH = [{"model": "chat", "namespace": "ai", "virtual_service": "llm", "route": "chat"}]


async def test_an_out_of_memory_patches_the_weights_of_an_admins_route_and_nothing_else(
    api, config, tmp_path
):
    await api.put(ADMINS, manager="helm")
    token = api.add_user(
        "patcher",
        Rule(("get", "watch", "patch"), "networking.istio.io", "virtualservices", "ai", ("llm",)),
        Rule(("get", "create", "update"), "coordination.k8s.io", "leases", "gpu-xds"),
    )
    path = config(token=token, patch=PATCH)
    async with (
        running_server(path, tmp_path / "state") as server,
        connected_agent(server.target) as agent,
    ):
        await greet(agent)
        await server.event("istio_leadership_gained")
        await out_of_memory(agent)
        await until(lambda: weights(api, "llm", 1)["vllm-70b"] == 0)
        found = api.object("virtualservices", "ai", "llm")
        assert sum(weights(api, "llm", 1).values()) == 100
        assert {each.verb for each in api.writes("virtualservices")} == {"patch"}
        for before, after in zip(ADMINS["spec"]["http"], found["spec"]["http"], strict=True):
            parts = [{k: v for k, v in each.items() if k != "route"} for each in (before, after)]
            assert parts[0] == parts[1]
        # The admin takes a tier out: nothing is written any more, and it is said why.
        edited = {**found, "spec": {**found["spec"], "http": found["spec"]["http"][:1]}}
        await api.put(edited, manager="helm")
        refused = await server.event("istio_object_refused")
        assert "has no HTTP route named 'chat'" in refused["reason"]
        assert await server.metric("fleet_kubernetes_refusals_total") == 1
        assert await server.metric("fleet_kubernetes_in_sync") == 0


async def test_of_two_control_planes_one_writes_and_the_other_takes_over(api, config, tmp_path):
    async with (
        running_server(config(name="a.yaml"), tmp_path / "a") as first,
        connected_agent(first.target) as one,
    ):
        await greet(one)
        await first.event("istio_leadership_gained")
        await until(lambda: weights(api).get("vllm-70b") == 100)
        async with (
            running_server(config(name="b.yaml"), tmp_path / "b") as second,
            connected_agent(second.target) as two,
        ):
            await greet(two)
            await until(lambda: len(api.asked("get", "leases")) > 4)
            assert await first.metric("fleet_kubernetes_leader") == 1
            assert await second.metric("fleet_kubernetes_leader") == 0
            # The second hears of the fault, the first does not: nobody writes what only the second knows.
            await out_of_memory(two)
            await second.event("instance_down", instance="a100-1")
            before = len(api.writes("virtualservices"))
            await asyncio.sleep(1.0)
            assert len(api.writes("virtualservices")) == before
            killed = time.monotonic()
            await first.stop(signal.SIGKILL)
            await until(lambda: weights(api)["vllm-70b"] == 0)
            took = time.monotonic() - killed
            assert 3 - 0.5 <= took <= 3 + 2 * 0.4 + 6, f"the lease is for 3 s, it took {took:.1f} s"
            assert lease(api)["leaseTransitions"] == 1
            ended = time.monotonic()
            await second.stop()
            assert time.monotonic() - ended < 10
            assert lease(api)["holderIdentity"] == ""


async def test_a_missing_verb_shows_in_log_metrics_and_history_and_ends_with_the_role(
    api, config, tmp_path
):
    token = api.add_user(
        "weak",
        Rule(("get", "watch", "create"), "networking.istio.io"),
        Rule(("get", "create", "update"), "coordination.k8s.io"),
    )
    async with (
        running_server(config(token=token), tmp_path / "state") as server,
        connected_agent(server.target) as agent,
    ):
        await greet(agent)
        await until(lambda: weights(api).get("vllm-70b") == 100)
        doubt = await server.event("istio_object_doubted")
        assert "'list' on virtualservices" in doubt["text"]
        await asyncio.sleep(1.1)
        await out_of_memory(agent)
        failed = await server.event("istio_object_failed", cause="forbidden")
        assert "'update' on virtualservices.networking.istio.io in namespace ai" in failed["error"]
        assert await server.metric("fleet_kubernetes_failures_total") >= 1
        query = "/api/events?kind=mesh&name=istio_object_failed"
        await until(lambda: _rows(server, query))
        assert weights(api)["vllm-70b"] == 100


async def _rows(server, query):
    return (await server.get_json(query))["events"]


async def test_a_cluster_without_istio_or_credentials_keeps_nobody_from_serving(
    api, config, tmp_path
):
    api.versions = []
    async with (
        running_server(config(), tmp_path / "state", ["--grace-s", "0"]) as server,
    ):
        said = await server.event("istio_server_unusable")
        assert "Istio's CRDs are not installed" in said["error"]
        await server.event("server_warm")
        assert (await server.get("/readyz"))[0] == 200
        assert await server.metric("fleet_kubernetes_leader") == 0


async def test_a_model_that_leaves_the_configuration_leaves_its_object(api, config, tmp_path):
    path = config()
    async with (
        running_server(path, tmp_path / "state") as server,
        connected_agent(server.target) as agent,
    ):
        await greet(agent)
        await until(lambda: weights(api).get("vllm-70b") == 100)
        config({"model": {"name": "renamed"}})
        await until(lambda: weights(api, "renamed").get("vllm-70b") == 100)
        left = await server.event("istio_object_left")
        assert (
            "kubectl delete -n ai virtualservices.networking.istio.io gpu-xds-chat" in left["text"]
        )
        assert weights(api)["vllm-70b"] == 100
