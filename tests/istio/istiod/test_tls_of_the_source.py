"""What a real istiod makes of `tlsSettings` of a config source."""

from __future__ import annotations

import pytest

from tests.fakes.empty_kube import empty_kube
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED, real_istiod
from tests.fakes.xds_process import ROOT
from tests.istio.mcp.rig import config_of, running_rig

pytestmark = pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)
CERTIFICATE = ROOT / "tests/data/tls/cert.pem"
FILES = {
    "certificate_file": str(CERTIFICATE),
    "key_file": str(ROOT / "tests/data/tls/key.pem"),
}


async def test_with_simple_it_checks_our_certificate_and_is_served(tmp_path):
    settings = {"mode": "SIMPLE", "caCertificates": CERTIFICATE.read_text()}
    async with running_rig(config_of(source=FILES)) as rig, empty_kube() as kube:
        source = {"address": f"xds://{rig.target}", "tlsSettings": settings}
        async with real_istiod(
            tmp_path / "istiod", sources=[source], kubeconfig=kube.kubeconfig(tmp_path)
        ) as istiod:
            assert "gpu-xds-chat" in await istiod.page("/debug/configz")


@pytest.mark.parametrize("mode", ["MUTUAL", "ISTIO_MUTUAL"])
async def test_other_modes_are_plaintext_without_a_word(tmp_path, mode):
    async with running_rig() as rig, empty_kube() as kube:
        source = {"address": f"xds://{rig.target}", "tlsSettings": {"mode": mode}}
        async with real_istiod(
            tmp_path / "istiod", sources=[source], kubeconfig=kube.kubeconfig(tmp_path)
        ) as istiod:
            assert "gpu-xds-chat" in await istiod.page("/debug/configz")
