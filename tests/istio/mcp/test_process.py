"""A real `xds-server` as the config source of an emulated istiod."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.fakes.adsc import started_istiod
from tests.fakes.waiting import until
from tests.fakes.xds_process import running_server

MESH = (Path(__file__).parents[1] / "mesh.yaml").read_text()
HOST = "llm.ai.svc.cluster.local"
PRIMARY, FALLBACK = "vllm-70b.ai.svc.cluster.local", "vllm-8b.ai.svc.cluster.local"
NAMES = ("a100-0", "a100-1", "l4-0")


def written(tmp_path: Path, listen: str = "127.0.0.1:0", **model) -> Path:
    document = yaml.safe_load(MESH)
    document["istio"]["models"][0].update(model)
    document["istio"]["config_source"] = {"listen": listen}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


async def target_of(server) -> str:
    return f"127.0.0.1:{(await server.event('config_source_listening'))['port']}"


async def order(server, path: str) -> None:
    status, text = await server.post(path)
    assert status == 202, text


async def test_an_istiod_gets_ready_and_follows_the_plan(tmp_path):
    async with running_server(written(tmp_path), tmp_path / "state", ["--grace-s", "0"]) as server:
        async with started_istiod(await target_of(server)) as istiod:
            assert istiod.weights(HOST) == {PRIMARY: 100}
            assert list(istiod.kinds("VirtualService")) == ["ai/gpu-xds-chat"]
            await order(server, "/force?tier=chat/fallback&for=5m&why=test")
            await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the forced tier")
            assert await server.metric("fleet_istio_streams") == 1
            assert await server.metric("fleet_istio_objects") == 1
            await until(lambda: server.named("mesh_object_published"))
            rows = await server.get_json("/api/events?kind=mesh")
            names = [each["name"] for each in rows["events"]]
            assert names.count("istiod_connected") == 1
            assert "mesh_object_published" in names
        await server.event("istiod_disconnected", istiod="istiod-0.istio-system")
