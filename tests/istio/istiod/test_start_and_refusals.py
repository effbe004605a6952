"""Who has to be there first, and what a real istiod makes of objects that it does not want."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.fakes.mesh_lab import HOST, MESH_FILE, SERVICES, TABLE, cluster, mesh_lab, split
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED
from xds_server.istio.mcp.catalog import Catalog, Draft, finished
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mcp.proto import VirtualService, encode_resource

pytestmark = pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)
ADMINS = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "VirtualService",
    "metadata": {
        "name": "admins",
        "namespace": "ai",
        "creationTimestamp": "2024-01-01T00:00:00Z",
    },
    "spec": {
        "hosts": [HOST],
        "http": [{"name": "admins", "route": [{"destination": {"host": HOST}}]}],
    },
}
LATEST = 14  # 15 types, and the mesh's own configuration


async def test_an_istiod_that_starts_before_us_ends_and_its_restart_finds_us(tmp_path):
    """istio#29656: meant so by its maintainers. Kubernetes starts it again."""
    async with mesh_lab(tmp_path / "absent", served=False, wait_ready=False) as lab:
        code = await asyncio.wait_for(lab.istiod.process.wait(), 30)
        assert code != 0
        assert "connection refused" in lab.istiod.log()
    async with mesh_lab(tmp_path / "there") as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)


async def test_istiod_waits_for_our_state_and_is_ready_with_it(tmp_path):
    """istio#44620: it is ready once every type was answered, also with nothing."""
    async with mesh_lab(tmp_path, first=None, wait_ready=False) as lab:

        async def asked() -> bool:
            streams = lab.ours.source.server.streams
            return any(len(each.session.types) >= LATEST for each in streams)

        while not await asked():
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        assert lab.istiod.process.returncode is None
        with pytest.raises((AssertionError, OSError)):
            assert await lab.istiod.is_ready()
        lab.plan(70, 30)
        await lab.istiod.until_ready(timeout_s=10)
        async with lab.watching() as watcher:
            await watcher.until(split(70, 30), timeout_s=5)
        (stream,) = lab.ours.source.server.streams
        assert all(each.asked.is_known for each in stream.session.types.values()), (
            "a newer Istio asks for more"
        )


async def test_an_object_that_istiod_refuses_keeps_its_last_version_and_harms_no_other(tmp_path):
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        bad = VirtualService(hosts=["*"], gateways=["mesh"])
        good = _virtual_service("gpu-xds-chat", HOST, 25, 75)
        _publish(lab, _draft("bad", bad), good)
        await watcher.until(split(25, 75), timeout_s=2)
        broken = _virtual_service("gpu-xds-chat", HOST, 0, 0)
        _publish(lab, broken)
        await asyncio.sleep(1.0)
        assert watcher.weights(HOST, TABLE) == split(25, 75)


async def test_an_object_that_is_left_out_is_gone_at_once(tmp_path):
    """Why nothing of ours is ever left out for a passing reason."""
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        lab.ours.source.server.publish(Catalog.of([]))
        await watcher.until({cluster(HOST): 100}, timeout_s=2)


async def test_content_under_an_old_version_is_not_looked_at(tmp_path):
    """Why a version is a hash of the content."""
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        before = _publish(lab, _virtual_service("gpu-xds-chat", HOST, 25, 75))
        await watcher.until(split(25, 75), timeout_s=2)
        key, kind = before.key, before.key[0]
        other = finished(_virtual_service("gpu-xds-chat", HOST, 75, 25), ())
        resource = encode_resource(
            kind=kind, key=key[1], version=before.version, labels=(), body=other.body
        )
        forged = replace(other, resource=resource)
        lab.ours.source.server.publish(Catalog.of([forged]))
        await asyncio.sleep(1.0)
        assert watcher.weights(HOST, TABLE) == split(25, 75)


async def test_a_body_that_istiod_does_not_know_deletes_the_object_it_had(tmp_path):
    """Worse than one that it refuses; and it says nothing to us."""
    async with mesh_lab(tmp_path) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        good = _publish(lab, _virtual_service("gpu-xds-chat", HOST, 25, 75))
        await watcher.until(split(25, 75), timeout_s=2)
        known = b"istio.networking.v1alpha3.VirtualService"
        strange = good.resource.replace(known, known.replace(b"v1alpha3", b"v1beta99"))
        strange = strange.replace(good.version.encode(), b"f" * len(good.version))
        assert len(strange) == len(good.resource)
        lab.ours.source.server.publish(Catalog.of([replace(good, version="new", resource=strange)]))
        await watcher.until({cluster(HOST): 100}, timeout_s=2)


async def test_a_route_answers_by_itself_once_no_tier_is_left(tmp_path):
    raw = yaml.safe_load(MESH_FILE.read_text())
    del raw["istio"]["models"][0]["tiers"]["static"]
    text = yaml.safe_dump(raw)
    async with mesh_lab(tmp_path, config=text) as lab, lab.watching() as watcher:
        await watcher.until(split(90, 10), timeout_s=5)
        lab.plan(0, 0, 100)
        await watcher.until({"": 100}, timeout_s=2)
        (virtual,) = (each for each in watcher.routes[TABLE].virtual_hosts if HOST in each.domains)
        answer = virtual.routes[0].direct_response
        assert answer.status == 200
        assert "Busy." in answer.body.inline_string
        lab.plan(10, 90)
        await watcher.until(split(10, 90), timeout_s=1)


async def test_of_two_virtual_services_for_a_host_the_older_one_of_the_admin_wins(tmp_path):
    """istio#36621. With no creation time ours would be of 1970, and win silently."""
    async with mesh_lab(tmp_path, documents=(*SERVICES, ADMINS)) as lab, lab.watching() as watcher:
        await watcher.until({cluster(HOST): 100}, timeout_s=5)
        lab.plan(50, 50)
        await asyncio.sleep(1.0)
        assert watcher.weights(HOST, TABLE) == {cluster(HOST): 100}


@pytest.mark.slow
async def test_keepalive_pings_of_istiod_do_not_cut_its_stream(tmp_path):
    """A gRPC server as it comes says "too many pings" after 50 s of them."""
    async with mesh_lab(tmp_path, environment={"GRPC_KEEPALIVE_INTERVAL": "10s"}) as lab:
        (stream,) = lab.ours.source.server.streams
        await asyncio.sleep(65)
        assert set(lab.ours.source.server.streams) == {stream}
        assert "too_many_pings" not in lab.istiod.log().lower().replace(" ", "_")


def _draft(name: str, message: Any) -> Draft:
    return Draft(kind=Kind.VIRTUAL_SERVICE, namespace="ai", name=name, message=message)


def _virtual_service(name: str, host: str, big: int, small: int) -> Draft:
    message = VirtualService(hosts=[host], gateways=["mesh"])
    route = message.http.add(name="chat")
    for each, weight in (("vllm-70b", big), ("vllm-8b", small)):
        part = route.route.add(weight=weight)
        part.destination.host = f"{each}.ai.svc.cluster.local"
        part.destination.port.number = 8000
    return _draft(name, message)


def _publish(lab: Any, *drafts: Draft) -> Any:
    """Tell istiod what our own judgment would never let out; return the last object."""
    objects = [finished(each, ()) for each in drafts]
    lab.ours.source.server.publish(Catalog.of(objects))
    return objects[-1]
