"""What the whole process does for the sidecars of a mesh: their endpoints, and the probe."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest
import yaml

from tests.fakes.envoy import eventually
from tests.fakes.istiod_port import IstiodPort, istiod_port, route_table
from tests.fakes.xds_process import running_server
from tests.xds.wire import RawStream
from xds_server.resources.proto import ClusterLoadAssignment
from xds_server.resources.snapshot import ENDPOINT

MESH = yaml.safe_load((Path(__file__).parents[1] / "istio/mesh.yaml").read_text())
HOST = "llm.ai.svc.cluster.local"
PRIMARY = "outbound|8000||vllm-70b.ai.svc.cluster.local"


def written(path: Path, **sections) -> Path:
    config = path / "mesh.yaml"
    config.write_text(yaml.safe_dump({**MESH, "istio": {**MESH["istio"], **sections}}))
    return config


async def asked(port: int, name: str, *, timeout_s: float = 10.0) -> ClusterLoadAssignment:
    """Ask for a cluster's endpoints as a sidecar's EDS stream does."""
    path = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        RawStream(channel, path) as stream,
    ):
        stream.node = {"id": "sidecar~10.0.0.9~client-0.ai~ai.svc.cluster.local"}
        await stream.ask(ENDPOINT, [name])
        response = await stream.response(timeout_s=timeout_s)
        return ClusterLoadAssignment.FromString(response.resources[0].value)


async def test_sidecars_get_a_tiers_endpoints_by_the_meshs_name_and_by_a_new_one_after_a_reload(
    tmp_path,
):
    config = written(tmp_path)
    async with running_server(config, tmp_path / "state", ["--grace-s", "0.1"]) as server:
        table = await asked(server.xds_port, PRIMARY)
        endpoints = table.endpoints[0].lb_endpoints
        assert [e.endpoint.address.socket_address.address for e in endpoints] == [
            "10.0.0.1",
            "10.0.0.2",
        ]
        (model,) = MESH["istio"]["models"]
        tiers = {**model["tiers"], "primary": {**model["tiers"]["primary"], "port": 9000}}
        written(tmp_path, models=[{**model, "tiers": tiers}])
        await server.event("config_reloaded")

        async def is_renamed() -> bool:
            try:
                await asked(server.xds_port, PRIMARY.replace("8000", "9000"), timeout_s=0.3)
            except TimeoutError:
                return False
            return True

        await eventually(is_renamed)
        with pytest.raises(TimeoutError):
            await asked(server.xds_port, PRIMARY, timeout_s=0.2)


async def test_the_probe_tells_metrics_and_history_whether_the_mesh_follows(tmp_path):
    async with istiod_port(IstiodPort()) as istiod:
        istiod.set(route_table(8000, {HOST: [("theirs", {"outbound|80||old.ai.svc": 1})]}))
        probe = {"istiod": f"127.0.0.1:{istiod.port}", "late_s": 1}
        config = written(tmp_path, probe=probe)
        async with running_server(config, tmp_path / "state", ["--grace-s", "0.1"]) as server:
            await server.event("mesh_watched")
            late = await server.event("mesh_not_following", model="chat")
            assert "another VirtualService for this host" in late["reason"]
            assert await server.metric("fleet_istio_probe_connected") == 1.0
            assert await server.metric("fleet_istio_unapplied_seconds") >= 1.0
            istiod.set(route_table(8000, {HOST: [("chat", {PRIMARY: 1})]}))
            await server.event("mesh_following", model="chat")
            assert await server.metric("fleet_istio_unapplied_seconds") == 0.0
            rows = (await server.get_json("/api/events?kind=mesh"))["events"]
            assert [row["name"] for row in rows] == ["mesh_not_following", "mesh_following"]
