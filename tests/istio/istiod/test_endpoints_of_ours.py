"""A ServiceEntry and a DestinationRule of ours in a real istiod."""

from __future__ import annotations

import json

import pytest

from tests.fakes.empty_kube import empty_kube
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED, real_istiod
from tests.fakes.waiting import until
from tests.istio.mcp.rig import OURS, PRIMARY, config_of, running_rig

pytestmark = pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)
LABELS = {"subset": "big", "labels": {"model": "70b"}}


async def test_endpoints_and_subsets_of_ours_are_taken_and_a_host_may_have_none_left(tmp_path):
    config = config_of(tiers={"primary": OURS | LABELS})
    async with (
        running_rig(config) as rig,
        empty_kube() as kube,
        real_istiod(
            tmp_path / "istiod",
            sources=[f"xds://{rig.target}"],
            kubeconfig=kube.kubeconfig(tmp_path),
        ) as istiod,
    ):

        async def spec(kind: str) -> dict:
            objects = json.loads(await istiod.page("/debug/configz"))
            (found,) = [each["spec"] for each in objects if each["kind"] == kind]
            return found

        async def addresses() -> list[str]:
            return [each["address"] for each in (await spec("ServiceEntry")).get("endpoints", ())]

        assert await addresses() == ["10.0.0.1", "10.0.0.2"]
        rule = await spec("DestinationRule")
        assert rule["host"] == PRIMARY
        assert rule["subsets"] == [{"name": "big", "labels": {"model": "70b"}}]
        assert rule["trafficPolicy"]["outlierDetection"]["maxEjectionPercent"] == 100
        (route,) = (await spec("VirtualService"))["http"]
        assert route["route"][0]["weight"] == 100
        for drained, left in (("a100-0", ["10.0.0.2"]), ("a100-1", [])):
            rig.drain(drained)

            async def is_so(left=left) -> bool:
                return await addresses() == left

            await until(is_so, drained)
        assert "Invalid data" not in istiod.log()
