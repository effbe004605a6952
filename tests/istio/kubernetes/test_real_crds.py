"""Every object that we write or advise, judged by Istio's own CRDs in a real API server."""

from __future__ import annotations

import copy
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.mesh_wanted import of_the_admin, wanted
from tests.fakes.real_kube import IS_THERE, plural_of, real_kube
from tests.fakes.xds_process import ROOT
from xds_server.cli import app
from xds_server.istio.kubernetes.auth import SignIn
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import KubernetesError
from xds_server.istio.kubernetes.objects import GROUP, ref_of

CRDS = [Path(each) for each in os.environ.get("ISTIO_CRD_FILES", "").split(os.pathsep) if each]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (IS_THERE and CRDS),
        reason="KUBE_APISERVER_BIN, ETCD_BIN and ISTIO_CRD_FILES name no files (docs/istio/kubernetes.md)",
    ),
]
INSTANCES = ("a100-0", "a100-1", "l4-0")
CLASSES = [
    {"name": "interactive", "match": {"header": "X-Tier_1", "value": "gold"}},
    {"name": "there", "match": {"header": "x-vip"}},
    {"name": "batch", "match": {"header": "x-b", "prefix": "/v1/batch"}, "when_critical": "reject"},
    {"name": "rest"},
]
OURS = {
    "primary": {"endpoints": "instances", "subset": "big", "labels": {"size": "70b"}},
    "fallback": {"subset": "small", "labels": {"a.b/c": "", "size": "8b"}},
}
ONE_HOST = {
    "primary": {"host": "vllm.ai.svc.cluster.local", "subset": "big", "labels": {"size": "70b"}},
    "fallback": {"host": "vllm.ai.svc.cluster.local", "subset": "small", "labels": {"size": "8b"}},
}
NO_STATIC = {
    "primary": {"host": "vllm-70b.ai.svc.cluster.local", "port": 8000, "endpoints": "instances"},
    "fallback": {"host": "vllm-8b.ai.svc.cluster.local"},
}
STATES = {
    "delegate": {},
    "host": {"model": {"delegate": False, "gateways": ["mesh", "ai/front"]}},
    "classes": {"classes": CLASSES},
    "hosts-of-ours": {"tiers": OURS},
    "shared-host": {"tiers": ONE_HOST},
    "no-endpoint-left": {"tiers": OURS, "drained": INSTANCES[:2]},
    "answers": {"model": {"tiers": NO_STATIC}, "drained": INSTANCES},
    "answers-of-classes": {
        "model": {"tiers": NO_STATIC},
        "classes": CLASSES,
        "drained": INSTANCES,
    },
    "patch": {
        "kubernetes": {
            "patch": [{"model": "chat", "namespace": "ai", "virtual_service": "llm", "route": "r"}]
        }
    },
}
ADMINS = of_the_admin(
    {
        "name": "r",
        "route": [
            {"destination": {"host": "vllm-70b"}, "weight": 1},
            {"destination": {"host": "vllm-8b"}, "weight": 99},
            {"destination": {"host": "busy"}},
        ],
    }
)


def objects(*, drained=(), **state):
    """Return what shall be in the cluster in a state."""
    return wanted(*drained, **state)[0]


PARTS = ("Component", "Kustomization", "StatefulSet")
"""Of kustomize, and what is patched into the server's manifest: no objects by themselves."""


def advised():
    """Return every object that documents and manifests of a mesh tell people to make."""
    documents = sorted((ROOT / "docs/istio").glob("*.md"))
    blocks = [
        block
        for each in documents
        for block in re.findall(r"```yaml\n(.*?)```", each.read_text(), re.DOTALL)
    ]
    blocks += [each.read_text() for each in sorted((ROOT / "deploy/istio").rglob("*.yaml"))]
    found = [each for block in blocks for each in yaml.safe_load_all(block)]
    return [
        each
        for each in found
        if isinstance(each, dict) and "apiVersion" in each and each.get("kind") not in PARTS
    ]


def envoy_filters(tmp_path):
    """Return EnvoyFilters as the command prints them."""
    plain = write_config(tmp_path / "f.yaml", mesh_config(tiers={"primary": {"subset": "big"}}))
    base = [
        "istio",
        "envoyfilter",
        str(plain),
        "--namespace",
        "ai",
        "--server",
        "fleet-xds.ai.svc:18000",
    ]
    for more in ([], ["--label", "app=x", "--tls-ca", "/etc/ca.pem", "--mesh-tls"]):
        printed = CliRunner().invoke(app, [*base, *more])
        assert printed.exit_code == 0, printed.output
        yield yaml.safe_load(printed.stdout)


async def judge(kube, document, *, how="application/apply-patch+yaml"):
    """Have the server judge an object strictly, as `kubectl apply --server-side --dry-run=server`."""
    group, _, version = document["apiVersion"].rpartition("/")
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    metadata = document["metadata"]
    scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else "/namespaces/ai"
    path = f"{base}{scope}/{plural_of(document['kind'])}/{metadata['name']}"
    query = "?fieldManager=t&force=true&fieldValidation=Strict&dryRun=All"
    return await kube.ask("PATCH", path + query, document, kind=how)


@asynccontextmanager
async def cluster(tmp_path):
    async with real_kube(tmp_path, crds=CRDS) as kube:
        path = kube.kubeconfig(tmp_path / "kubeconfig")
        async with KubernetesClient(SignIn(kubeconfig=str(path))) as client:
            yield kube, client


async def test_istios_own_crds_take_everything_that_we_write_or_advise(tmp_path):
    """One test, because a real server takes its time to start."""
    async with cluster(tmp_path) as (kube, client):
        version, *others = await client.versions(GROUP)
        assert version == "v1"
        await kube.apply([ADMINS])
        assert "endpoints" not in objects(**STATES["no-endpoint-left"])[0].spec
        for name, state in STATES.items():
            for each in objects(**state):
                await written(client, each, name)
            for older in others:
                for each in objects(version=older, **state):
                    if not hasattr(each, "operations"):
                        await judge(kube, each.document())
            for each in objects(**state):
                if not hasattr(each, "operations"):
                    await judge(kube, each.document())
        for document in envoy_filters(tmp_path):
            await judge(kube, document)
        found = advised()
        for document in found:
            await judge(kube, document)
        kinds = {each["kind"] for each in found}
        assert {"InferencePool", "VirtualService", "NetworkPolicy", "Service", "Role"} <= kinds
        await refused(client)


async def written(client, each, name):
    """Write an object as the server would, over what was there before, and find it unchanged afterwards."""
    listed = await client.all_of(each.ref)
    named = (one for one in listed if one["metadata"]["name"] == each.ref.name)
    live = next(named, None)
    if hasattr(each, "operations"):
        stored = await client.patch(each.ref, each.operations(live))
        assert each.operations(stored) == []
        assert [one.get("weight", 0) for one in stored["spec"]["http"][0]["route"]] == [100, 0, 0]
        return
    assert each.fault == "", name
    if live is None:
        stored = await client.create(each.ref, each.document())
    else:
        stored = await client.replace(each.ref, each.document(live))
    assert stored["spec"] == each.spec, "nothing is put in or left out by the server"


async def refused(client):
    """What the CRDs do not know is refused, so the acceptance above means something."""
    (service,) = objects()
    wrong = copy.deepcopy(service.document())
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["http"][0]["route"][0]["weigth"] = 1
    with pytest.raises(KubernetesError) as caught:
        await client.create(ref_of("virtualservices", "ai", "wrong", version="v1"), wrong)
    assert 'unknown field "spec.http[0].route[0].weigth"' in caught.value.said
