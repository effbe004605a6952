"""The manifests in a real API server: every object as kustomize builds it, pods as a namespace that restricts judges them, and roles.

No node is needed for any of that; what a kubelet, a controller or a network would do is not seen here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fakes.kube_api import kubeconfig_of
from tests.fakes.kube_schema import CRDS
from tests.fakes.manifests import (
    COMPONENTS,
    ISTIO,
    KUBERNETES,
    built,
    documents,
    kustomize,
    rules_of,
    with_components,
)
from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.real_kube import ACCOUNT, IS_THERE, WHY_SKIPPED, real_kube
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import running_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_THERE, reason=WHY_SKIPPED),
    pytest.mark.skipif(kustomize() is None, reason="there is neither kustomize nor kubectl"),
]
MONITORING = "monitoring.coreos.com/v1"
MONITORS = [
    Path(each) for each in os.environ.get("MONITOR_CRD_FILES", "").split(os.pathsep) if each
]
"""The operator's kinds are left out where nobody gives them; tests/deploy/test_kubernetes.py holds their fields."""
RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}
INSTANCES = ("a100-0", "a100-1", "l4-0")
TIERS = {
    "primary": {"endpoints": "instances"},
    "fallback": {"subset": "v1", "labels": {"a": "b"}},
}


def pod_of(workload: dict) -> dict:
    """Return a pod as the workload's controller would make it."""
    template = workload["spec"]["template"]
    metadata = {
        **template["metadata"],
        "name": f"{workload['metadata']['name']}-0",
        "namespace": workload["metadata"]["namespace"],
    }
    spec = dict(template["spec"])
    claims = workload["spec"].get("volumeClaimTemplates", ())
    spec["volumes"] = [
        *spec["volumes"],
        *(
            {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{metadata['name']}"}}
            for name in (each["metadata"]["name"] for each in claims)
        ),
    ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("chosen", [(), COMPONENTS], ids=["plain", "every-way"])
async def test_a_cluster_takes_every_object_and_admits_the_pods(chosen, tmp_path):
    found = await built(with_components(tmp_path / "mine", chosen))
    async with real_kube(tmp_path, crds=(CRDS, *MONITORS)) as kube:
        taken = [each for each in found if MONITORS or each["apiVersion"] != MONITORING]
        assert len(found) - len(taken) == (0 if MONITORS else 2)
        await kube.apply(taken)
        # A second time changes nothing: nothing immutable is in the way of an update.
        await kube.apply(taken)
        await kube.apply([RUNTIME])
        example = documents(KUBERNETES / "engine-with-sidecar.yaml")
        await kube.apply(example)
        workloads = [each for each in [*found, *example] if "template" in each.get("spec", {})]
        assert [each["kind"] for each in workloads] == ["StatefulSet", "DaemonSet", "Deployment"]
        pods = "/api/v1/namespaces/gpu-xds/pods?dryRun=All&fieldValidation=Strict"
        for each in workloads:
            await kube.ask("POST", pods, pod_of(each))
        assert not kube.warnings
        # The namespace does judge.
        rooted = pod_of(workloads[0])
        rooted["spec"] |= {"securityContext": {"runAsUser": 0}}
        with pytest.raises(AssertionError, match=r"violates PodSecurity .*restricted:latest"):
            await kube.ask("POST", pods, rooted)
        misspelled = {**workloads[0], "spec": {**workloads[0]["spec"], "replica": 2}}
        with pytest.raises(AssertionError, match="field not declared in schema"):
            await kube.apply([misspelled])


class Audit:
    """What the API server says the server's account asked, and on what grounds it let it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "audit.log"
        policy = directory / "audit.json"
        policy.write_text(json.dumps(AUDIT))
        self.options = ("--audit-policy-file", str(policy), "--audit-log-path", str(self.path))

    def asked(self) -> list[dict]:
        lines = self.path.read_text().splitlines() if self.path.exists() else ()
        return [json.loads(each) for each in lines if each.endswith("}")]

    def verbs(self) -> set[tuple[str, str]]:
        return {
            (each["verb"], each["objectRef"]["resource"])
            for each in self.asked()
            if "objectRef" in each
        }

    def has(self, verb: str, plural: str) -> bool:
        return (verb, plural) in self.verbs()


async def test_a_token_of_the_manifests_lacks_no_verb_and_uses_every_one(tmp_path):
    audit = Audit(tmp_path)
    found = await built(ISTIO)
    rules = rules_of(found)
    async with real_kube(tmp_path, crds=(CRDS,), options=audit.options) as kube:
        await kube.apply([each for each in found if each["apiVersion"] != MONITORING])
        await kube.apply(documents(ISTIO / "kubernetes/root-virtualservice.yaml"))
        token = await kube.token_of("gpu-xds", "xds-server")
        path = kubeconfig_of(kube.url, tmp_path / "kubeconfig", token)
        section = {"kubeconfig": str(path), "lease_s": 2}
        config = write_config(tmp_path / "fleet.yaml", mesh_config(kubernetes=section, tiers=TIERS))
        async with (
            running_server(config, tmp_path / "state") as server,
            connected_agent(server.target) as agent,
        ):
            await agent.greet(*INSTANCES)
            for name in INSTANCES:
                await agent.report(name)
            await server.event("istio_leadership_gained")
            await until(lambda: audit.has("create", "virtualservices"), "objects", 30)
            for name in ("a100-0", "a100-1"):
                await agent.report(name, draining=True)
            # A destination rule that was right from the start is not written again.
            wanted = {(verb, rule.plural) for rule in rules for verb in rule.verbs} - {
                ("update", "destinationrules")
            }
            await until(lambda: wanted <= audit.verbs(), "every verb", 30)
            assert not server.named("istio_object_failed")
            assert not server.named("istio_object_doubted")
    requests = [each for each in audit.asked() if "objectRef" in each]
    assert {each["user"]["username"] for each in requests} == {ACCOUNT}
    for each in requests:
        assert each["annotations"]["authorization.k8s.io/decision"] == "allow", each
        assert "RoleBinding" in each["annotations"]["authorization.k8s.io/reason"], each
