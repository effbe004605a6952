"""The real server against an API server: what happens in the fleet arrives in the mesh's objects."""

from __future__ import annotations

import asyncio
import time

import grpc.aio  # noqa: F401 - starts gRPC before processes are forked
import pytest

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.xds_process import running_server

INSTANCES = ("a100-0", "a100-1", "l4-0")


def weights(api, name="gpu-xds-chat", route=0):
    spec = api.object("virtualservices", "ai", name)["spec"]
    return {
        each["destination"]["host"].partition(".")[0]: each.get("weight", 0)
        for each in spec["http"][route]["route"]
    }


async def until(condition, timeout_s=10.0):
    """Wait for a condition; one that fails with KeyError is not met yet."""
    began = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                if condition():
                    return time.monotonic() - began
            except KeyError:
                pass
            await asyncio.sleep(0.01)


@pytest.fixture
def config(api, tmp_path):
    def write(document=None, *, token="admin-token", name="config.yaml", **kubernetes):
        kubeconfig = api.kubeconfig(tmp_path / f"{name}.kubeconfig", token)
        section = {"kubeconfig": str(kubeconfig), "lease_s": 3, **kubernetes}
        return write_config(tmp_path / name, mesh_config(kubernetes=section, **(document or {})))

    return write


async def greet(agent):
    await agent.hello(1, INSTANCES)
    await asyncio.wait_for(agent.welcome, 5)
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
        for name in ("a100-0", "a100-1"):
            await agent.report(name, state=pb.ENGINE_STATE_DOWN, out_of_memory=True)
        took = await until(lambda: weights(api)["vllm-70b"] == 0)
        assert sum(weights(api).values()) == 100
        assert took < 2.0
        assert await server.metric("fleet_kubernetes_leader") == 1
        assert await server.metric("fleet_kubernetes_writes_total") == len(
            api.writes("virtualservices")
        )
        rows = (await server.get_json("/api/events?kind=mesh"))["events"]
        assert {"istio_leadership_gained", "istio_object_written"} <= {
            each["name"] for each in rows
        }
    holder = api.object("leases", "gpu-xds", "gpu-xds-istio", "coordination.k8s.io")
    assert holder["spec"]["holderIdentity"] == "", "given back at the end"
