"""The whole of it with real programs: the server writes to a kube-apiserver, istiod reads there, a sidecar gets it."""

from __future__ import annotations

import asyncio
import time

import pytest
import yaml

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.istiod_port import sidecar
from tests.fakes.mesh_lab import HOST, MESH_FILE, SERVICES, TABLE, split
from tests.fakes.real_istiod import BINARY, free_ports, real_istiod
from tests.fakes.real_kube import IS_THERE, real_kube
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import ROOT, running_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (IS_THERE and BINARY),
        reason="KUBE_APISERVER_BIN, ETCD_BIN and PILOT_DISCOVERY_BIN name no programs (docs/istio)",
    ),
]
FOLDER = ROOT / "deploy/istio/kubernetes"
INSTANCES = ("a100-0", "a100-1", "l4-0")


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


async def test_an_out_of_memory_reaches_sidecars_through_a_delegate(tmp_path):
    istiod_at = free_ports(5)
    async with real_kube(tmp_path) as kube:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}}
        await kube.apply(
            [
                namespace,
                *documents("rbac.yaml"),
                *documents("root-virtualservice.yaml"),
                *SERVICES,
            ]
        )
        raw = yaml.safe_load(MESH_FILE.read_text())
        raw["istio"]["models"][0]["delegate"] = True
        raw["istio"] |= {
            "kubernetes": {
                "kubeconfig": str(kube.kubeconfig(tmp_path / "ours", "server-token")),
                "lease_s": 3,
            },
            "probe": {"istiod": f"127.0.0.1:{istiod_at[1]}", "late_s": 3},
        }
        config = tmp_path / "fleet.yaml"
        config.write_text(yaml.safe_dump(raw))
        async with (
            real_istiod(
                tmp_path / "istiod",
                sources=["k8s://"],
                kubeconfig=kube.kubeconfig(tmp_path / "istiods"),
                ports=istiod_at,
            ) as istiod,
            running_server(config, tmp_path / "state") as server,
            connected_agent(server.target) as agent,
            sidecar(istiod.xds, host=HOST, table=TABLE) as watcher,
        ):
            await agent.greet(*INSTANCES)
            for name in INSTANCES:
                await agent.report(name)
            await watcher.until(split(100, 0), timeout_s=30)
            await server.event("mesh_watched", timeout_s=30)
            await asyncio.sleep(
                1.1
            )  # The object may be written again: what is measured is the way.
            told = time.monotonic()
            for name in INSTANCES[:2]:
                await agent.report(name, state=pb.ENGINE_STATE_DOWN, out_of_memory=True)
            await watcher.until(split(0, 100), timeout_s=5, since=told)
            print(f"\nout of memory -> sidecar: {time.monotonic() - told:.3f} s")  # noqa: T201 - a figure

            async def is_followed():
                _, text = await server.get("/metrics")
                return 'fleet_istio_unapplied_seconds{model="chat"} 0.0' in text

            await until(is_followed, "the probe", 20)
            assert await server.metric("fleet_istio_applied_seconds_count") >= 1
            assert server.named("istio_object_failed") == []
