"""The real process against a real API server, with the roles of deploy/istio/kubernetes."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
import yaml

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.mesh_wanted import of_the_admin
from tests.fakes.real_kube import IS_THERE, WHY_SKIPPED, real_kube
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import ROOT, running_server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_THERE, reason=WHY_SKIPPED)]
FOLDER = ROOT / "deploy/istio/kubernetes"
INSTANCES = ("a100-0", "a100-1", "l4-0")
PATCH = [{"model": "chat", "namespace": "ai", "virtual_service": "llm", "route": "chat"}]
ADMINS = of_the_admin(
    {
        "name": "chat",
        "route": [
            {"destination": {"host": "vllm-70b"}, "weight": 100},
            {"destination": {"host": "vllm-8b"}},
            {"destination": {"host": "busy"}, "weight": 0},
        ],
    }
)


@pytest.fixture
async def kube(tmp_path):
    async with real_kube(tmp_path) as running:
        yield running


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def config(kube, tmp_path, name, **kubernetes):
    path = kube.kubeconfig(tmp_path / f"{name}.kubeconfig", "server-token")
    section = {"kubeconfig": str(path), "lease_s": 3, **kubernetes}
    tiers = {} if "patch" in kubernetes else {"primary": {"endpoints": "instances"}}
    return write_config(tmp_path / f"{name}.yaml", mesh_config(kubernetes=section, tiers=tiers))


async def report(agent, **facts):
    for name in INSTANCES:
        await agent.report(name, **(facts if name.startswith("a100") else {}))


async def greet(agent):
    await agent.greet(*INSTANCES)
    await report(agent)


async def weighs(kube, host, weight, name="gpu-xds-chat"):
    async def does():
        return (await kube.weights(name)).get(host) == weight

    await until(does, f"{host} at {weight}", 30)


async def test_objects_of_our_own_follow_the_fleet_and_one_of_two_writes(kube, tmp_path):
    await kube.apply([*documents("rbac.yaml"), *documents("root-virtualservice.yaml")])
    async with (
        running_server(config(kube, tmp_path, "a"), tmp_path / "a") as first,
        connected_agent(first.target) as one,
    ):
        await greet(one)
        await weighs(kube, "vllm-70b", 100)
        entries = "/apis/networking.istio.io/v1/namespaces/ai/serviceentries"
        found = (await kube.ask("GET", entries))["items"]
        assert [len(each["spec"]["endpoints"]) for each in found] == [2]
        assert not first.named("istio_object_failed")
        assert not first.named("istio_object_doubted")

        # Somebody edits a weight: it is written again, and it is said who it was.
        path = "/apis/networking.istio.io/v1/namespaces/ai/virtualservices/gpu-xds-chat"
        edit = [{"op": "replace", "path": "/spec/http/0/route/0/weight", "value": 3}]
        await kube.ask(
            "PATCH",
            f"{path}?fieldManager=somebody",
            edit,
            kind="application/json-patch+json",
        )
        back = await first.event("istio_object_taken_back")
        assert back["by"] == "somebody"
        await weighs(kube, "vllm-70b", 100)

        # A write and nothing more: looking again changes nothing.
        version = (await kube.ask("GET", path))["metadata"]["resourceVersion"]
        writes = await first.metric("fleet_kubernetes_writes_total")
        await asyncio.sleep(1.5)
        assert (await kube.ask("GET", path))["metadata"]["resourceVersion"] == version
        assert await first.metric("fleet_kubernetes_writes_total") == writes

        async with (
            running_server(config(kube, tmp_path, "b"), tmp_path / "b") as second,
            connected_agent(second.target) as two,
        ):
            await greet(two)
            await report(one, state=pb.ENGINE_STATE_DOWN, out_of_memory=True)
            told = time.monotonic()
            await weighs(kube, "vllm-70b", 0)
            print(f"\nout of memory -> stored: {time.monotonic() - told:.3f} s")  # noqa: T201 - a figure
            assert await second.metric("fleet_kubernetes_writes_total") == 0
            killed = time.monotonic()
            await first.stop(signal.SIGKILL)
            await second.event("istio_leadership_gained")
            took = time.monotonic() - killed
            print(f"killed -> another one leads: {took:.2f} s of a lease of 3 s")  # noqa: T201 - a figure
            # What the second knows is that all is well.
            await weighs(kube, "vllm-70b", 100)
            assert took < 3 + 2 * 0.4 + 6


async def test_weights_of_an_admins_route_follow_and_a_missing_verb_is_told(kube, tmp_path):
    await kube.apply([*documents("rbac.yaml")[:2], ADMINS])
    path = config(kube, tmp_path, "a", patch=PATCH)
    async with (
        running_server(path, tmp_path / "a") as server,
        connected_agent(server.target) as agent,
    ):
        await greet(agent)
        # Reading and watching are refused side by side; both are told, whichever comes first.
        await until(
            lambda: any(
                "the verb 'get' on virtualservices.networking.istio.io" in each["error"]
                for each in server.named("istio_object_failed", cause="forbidden")
            )
        )
        await kube.apply(documents("patch-role.yaml"))
        await report(agent, state=pb.ENGINE_STATE_DOWN, out_of_memory=True)
        await weighs(kube, "vllm-70b", 0, "llm")
        weights = await kube.weights("llm")
        assert sum(weights.values()) == 100
        assert await server.metric("fleet_kubernetes_in_sync") == 1
