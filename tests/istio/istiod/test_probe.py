"""The probe on a real istiod."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.envoy import eventually
from tests.fakes.mesh_lab import HOST, MESH_FILE, SERVICES, mesh_lab
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED
from xds_server.config.istio_schema import ProbeSection
from xds_server.istio.probe.probe import Probe

TLS = Path(__file__).parents[2] / "data/tls"
pytestmark = pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)
ROOT = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "VirtualService",
    "metadata": {"name": "root", "namespace": "ai"},
    "spec": {
        "hosts": [HOST],
        "http": [{"name": "root", "delegate": {"name": "gpu-xds-chat", "namespace": "ai"}}],
    },
}


class Watch:
    """A probe beside the lab's config source."""

    def __init__(self, lab, **section) -> None:
        self.lab = lab
        section = {"istiod": f"127.0.0.1:{lab.istiod.xds}", "late_s": 1} | section
        self.probe = Probe(lab.ours.around, ProbeSection(**section))
        self.task = asyncio.create_task(self.probe.run())

    @property
    def unapplied_s(self) -> float | None:
        found = {each[0]: each[2] for each in self.probe.readings()}
        return found.get("fleet_istio_unapplied_seconds")

    def applied(self) -> list[float]:
        return self.lab.ours.tally.histograms.get("fleet_istio_applied_seconds", [0.0])

    async def is_at(self, check) -> None:
        async def asked() -> bool:
            return bool(check())

        await eventually(asked)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_probe_sees_every_step_arrive_and_how_long_it_took(tmp_path):
    async with mesh_lab(tmp_path) as lab:
        watch = Watch(lab)
        lab.plan(90, 10)
        await watch.is_at(lambda: watch.unapplied_s == 0.0)
        for count, step in enumerate(((50, 50), (0, 100), (100, 0), (60, 30, 10)), 1):
            lab.plan(*step)
            await watch.is_at(lambda count=count: sum(watch.applied()[:-1]) == count)
            assert watch.unapplied_s == 0.0
            await asyncio.sleep(0.3)
        assert watch.applied()[-1] / 4 < 0.5, "seconds, on average"
        assert [each.name for each in lab.ours.rows if each.name.startswith("mesh_not")] == []
        await watch.stop()


async def test_the_probe_sees_through_a_delegate(tmp_path):
    text = MESH_FILE.read_text().replace("namespace: ai", "namespace: ai\n      delegate: true")
    async with mesh_lab(tmp_path, documents=(*SERVICES, ROOT), config=text) as lab:
        watch = Watch(lab)
        lab.plan(90, 10)
        await watch.is_at(lambda: watch.unapplied_s == 0.0)
        lab.plan(20, 80)
        await watch.is_at(lambda: sum(watch.applied()[:-1]) == 1)
        await watch.stop()


async def test_the_virtual_service_of_somebody_else_is_an_event(tmp_path):
    theirs = {
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
    async with mesh_lab(tmp_path, documents=(*SERVICES, theirs)) as lab:
        watch = Watch(lab)
        lab.plan(90, 10)
        rows = lab.ours.rows
        await watch.is_at(lambda: [each for each in rows if each.name == "mesh_not_following"])
        (row,) = (each for each in rows if each.name == "mesh_not_following")
        assert "the routes of sidecars (admins) lead elsewhere" in row.text
        await watch.stop()


@pytest.mark.parametrize(
    ("token", "section", "said"),
    [
        pytest.param("good", {}, None, id="its token"),
        pytest.param("bad", {}, "UNAUTHENTICATED", id="a token that nobody knows"),
        pytest.param("good", {"namespace": "shop"}, "PERMISSION_DENIED", id="another namespace"),
    ],
)
async def test_istiods_tls_port_lets_in_who_has_the_token_of_its_service_account(
    tmp_path, token, section, said
):
    file = tmp_path / "token"
    file.write_text(token)
    async with mesh_lab(
        tmp_path / "mesh",
        tls=TLS,
        tokens={"good": ("ai", "default")},
        environment={"XDS_AUTH": "true"},
    ) as lab:
        watch = Watch(
            lab,
            istiod=f"127.0.0.1:{lab.istiod.secure}",
            ca_file=str(TLS / "cert.pem"),
            server_name="localhost",
            token_file=str(file),
            **section,
        )
        lab.plan(90, 10)
        if said is None:
            await watch.is_at(lambda: watch.unapplied_s == 0.0)
        else:
            rows = lab.ours.rows
            await watch.is_at(
                lambda: any(said in each.text for each in rows if each.name == "mesh_unwatched")
            )
        await watch.stop()
