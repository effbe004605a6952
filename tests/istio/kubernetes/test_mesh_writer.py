"""The way through the Kubernetes API in this process, beside a real loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from tests.fakes.waiting import until
from tests.istio.mcp.rig import HOST, config_of, running_rig
from xds_server.config.istio_schema import KubernetesSection
from xds_server.istio.kubernetes import mesh_writer
from xds_server.istio.kubernetes.mesh_writer import MeshWriter
from xds_server.istio.kubernetes.report import Reporter

DOUBT = "istio_object_doubted"
THEIRS = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "VirtualService",
    "metadata": {"name": "theirs", "namespace": "ai"},
    "spec": {"hosts": [HOST], "http": [{"name": "all", "route": [{"destination": {"host": "a"}}]}]},
}


@asynccontextmanager
async def writing(rig, api, tmp_path):
    """Run the way beside a rig."""
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    section = KubernetesSection(kubeconfig=str(kubeconfig), lease_s=3)
    writer = MeshWriter(rig.around, section)
    rig.loop.force()
    running = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_object_for_the_same_host_that_comes_later_is_told(api, tmp_path, monkeypatch):
    monkeypatch.setattr(mesh_writer, "ADVICE_S", 0.2)
    monkeypatch.setattr(mesh_writer, "CONFIG_LOOK_S", 0.1)
    looks = []
    doubted = Reporter.doubted
    monkeypatch.setattr(Reporter, "doubted", lambda *given: (looks.append(1), doubted(*given)))
    async with running_rig(config_of()) as rig, writing(rig, api, tmp_path):
        await until(lambda: len(looks) >= 3, "it to look without a reason")
        assert rig.named(DOUBT) == []
        await api.put(THEIRS)
        await until(lambda: rig.named(DOUBT), "the doubt")
        seen = len(looks)
        await until(lambda: len(looks) >= seen + 2, "it to look again")
        (text,) = rig.named(DOUBT)
        said = f"VirtualService ai/theirs is for {HOST} too, on mesh: Istio uses the older"
        assert text.startswith(said)


async def test_nothing_is_written_before_the_plan_is_authoritative(api, tmp_path):
    async with running_rig(config_of(), warm=False) as rig, writing(rig, api, tmp_path):
        await until(lambda: rig.named("istio_leadership_gained"), "it to lead")
        rig.force("fallback")
        await until(lambda: rig.loop.fleet.plan is not None, "a plan")
        await asyncio.sleep(0.3)
        assert api.writes("virtualservices") == []
        rig.loop.warm_up()
        await until(lambda: api.writes("virtualservices"), "the first write")
        (route,) = api.object("virtualservices", "ai", "gpu-xds-chat")["spec"]["http"]
        assert [each["weight"] for each in route["route"]] == [0, 100, 0]
