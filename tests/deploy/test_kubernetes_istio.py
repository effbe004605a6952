"""What the mesh's manifests allow is what the way through the Kubernetes API needs, to the verb."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.fakes.kube_api import Rule, running_api
from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import running_server
from xds_server.config.istio_checks import object_name
from xds_server.config.istio_schema import KubernetesSection
from xds_server.istio.kubernetes.wanted import NAMESPACE

FOLDER = Path(__file__).resolve().parents[2] / "deploy/kubernetes/istio"
ACCOUNT = {"kind": "ServiceAccount", "name": "xds-server", "namespace": "gpu-xds"}
FILES = ("rbac.yaml", "patch-role.yaml")
INSTANCES = ("a100-0", "a100-1", "l4-0")


def documents(file: str) -> list[dict]:
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


def rules_of(*files: str) -> list[Rule]:
    """Return what the account may do with these manifests, as an authorizer reads them."""
    found = [each for file in files for each in documents(file)]
    roles = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["rules"]
        for each in found
        if each["kind"] == "Role"
    }
    return [
        Rule(
            tuple(rule["verbs"]),
            group,
            plural,
            binding["metadata"]["namespace"],
            tuple(rule.get("resourceNames", ())),
        )
        for binding in found
        if binding["kind"] == "RoleBinding" and ACCOUNT in binding["subjects"]
        for rule in roles[binding["metadata"]["namespace"], binding["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    ]


@pytest.mark.parametrize("file", FILES)
def test_roles_are_bound_to_our_account_alone_and_allow_nothing_that_deletes(file):
    for each in documents(file):
        assert each["apiVersion"] == "rbac.authorization.k8s.io/v1"
        assert re.fullmatch(r"[a-z0-9-]+", each["metadata"]["name"])
        assert set(each["metadata"]) == {"name", "namespace"}
        if each["kind"] == "Role":
            assert set(each) == {"apiVersion", "kind", "metadata", "rules"}
            for rule in each["rules"]:
                assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}
                known = {"get", "list", "watch", "create", "update", "patch"}
                assert set(rule["verbs"]) <= known
                assert not {"*"} & {*rule["apiGroups"], *rule["resources"]}
        else:
            assert each["kind"] == "RoleBinding"
            assert each["roleRef"]["kind"] == "Role"
            assert each["subjects"] == [ACCOUNT]
    # Every role is bound, and every binding has its role.
    assert rules_of(file)


def test_the_roles_name_the_lease_and_namespace_that_are_the_default():
    names = {name for rule in rules_of("rbac.yaml") for name in rule.names}
    assert names == {KubernetesSection().lease}
    (namespace,) = {each.namespace for each in rules_of("rbac.yaml") if each.plural == "leases"}
    assert namespace == NAMESPACE


def test_the_kustomization_holds_the_roles_and_gives_the_pod_its_token():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["..", "rbac.yaml"]
    (patch,) = (each["path"] for each in kustomization["patches"])
    (token,) = documents(patch)
    server = next(
        each
        for each in yaml.safe_load_all((FOLDER.parent / "server.yaml").read_text())
        if each["kind"] == token["kind"]
    )
    assert server["metadata"]["name"] == token["metadata"]["name"]
    pod = server["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == ACCOUNT["name"]
    assert token["spec"]["template"]["spec"] == {"automountServiceAccountToken": True}


def test_the_root_delegates_to_the_object_that_we_make():
    (root,) = documents("root-virtualservice.yaml")
    (route,) = root["spec"]["http"]
    assert set(route) == {"name", "match", "delegate"}, "Istio takes nothing else beside a delegate"
    assert route["delegate"]["name"] == object_name("chat")


@pytest.mark.parametrize(
    ("roles", "kubernetes", "tiers"),
    [
        (
            ("rbac.yaml",),
            {},
            {
                "primary": {"endpoints": "instances"},
                "fallback": {"subset": "v1", "labels": {"a": "b"}},
            },
        ),
        (
            ("patch-role.yaml", "rbac.yaml"),
            {
                "patch": [
                    {"model": "chat", "namespace": "ai", "virtual_service": "llm", "route": "chat"}
                ]
            },
            {},
        ),
    ],
    ids=["objects-of-our-own", "weights-of-an-admins"],
)
async def test_the_server_lacks_no_verb_and_needs_every_one(tmp_path, roles, kubernetes, tiers):
    async with running_api() as api:
        rules = rules_of(*roles)
        if kubernetes:
            rules = [each for each in rules if each.plural == "leases" or "patch" in each.verbs]
            await api.put(admins())
        else:
            (root,) = documents("root-virtualservice.yaml")
            await api.put(root)
        token = api.add_user("system:serviceaccount:gpu-xds:xds-server", *rules)
        section = {"kubeconfig": str(api.kubeconfig(tmp_path / "kubeconfig", token)), "lease_s": 2}
        document = mesh_config(kubernetes={**section, **kubernetes}, tiers=tiers)
        config = write_config(tmp_path / "fleet.yaml", document)
        async with (
            running_server(config, tmp_path / "state") as server,
            connected_agent(server.target) as agent,
        ):
            await agent.greet(*INSTANCES)
            for name in INSTANCES:
                await agent.report(name)
            await server.event("istio_leadership_gained")
            if not kubernetes:
                await until(lambda: api.writes("virtualservices"))
            for name in ("a100-0", "a100-1"):
                await agent.report(name, draining=True)
            wanted = {"update", "patch"}
            await until(lambda: {each.verb for each in api.writes("virtualservices")} & wanted)
            if not kubernetes:
                await until(lambda: api.writes("serviceentries"))
                await until(lambda: api.writes("destinationrules"))
                await until(lambda: api.asked("list", "destinationrules"))
            await until(lambda: api.asked("watch", "virtualservices"))
            assert not server.named("istio_object_failed")
            assert not server.named("istio_object_doubted")
        used = {(each.verb, each.target.group) for each in api.log}
        allowed = {(verb, rule.group) for rule in rules for verb in rule.verbs}
        assert used == allowed
        assert {each.status for each in api.log} <= {0, 200, 201, 404}


def admins() -> dict:
    """Return a VirtualService of the mesh admin's with the tiers as destinations."""
    hosts = ("vllm-70b", "vllm-8b", "busy")
    route = [
        {"destination": {"host": host}, "weight": weight}
        for host, weight in zip(hosts, (100, 0, 0), strict=True)
    ]
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "llm", "namespace": "ai"},
        "spec": {
            "hosts": ["llm.ai.svc.cluster.local"],
            "http": [{"name": "chat", "route": route}],
        },
    }
