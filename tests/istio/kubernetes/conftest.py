from __future__ import annotations

import pytest

from tests.fakes.kube_api import running_api
from xds_server.istio.kubernetes.auth import SignIn
from xds_server.istio.kubernetes.client import KubernetesClient


@pytest.fixture
async def api():
    async with running_api() as running:
        yield running


@pytest.fixture
async def client(api, tmp_path):
    path = api.kubeconfig(tmp_path / "kubeconfig")
    async with KubernetesClient(SignIn(kubeconfig=str(path))) as made:
        yield made
