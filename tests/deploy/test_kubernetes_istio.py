"""What a mesh's manifests add: every verb that the way through the Kubernetes API needs, ports and policies for the others."""

from __future__ import annotations

import re
from itertools import chain

import pytest
import yaml

from tests.fakes.kube_api import running_api
from tests.fakes.manifests import (
    ACCOUNT,
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
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import until
from tests.fakes.xds_process import ROOT, running_server
from xds_server.config.istio_checks import object_name
from xds_server.config.istio_schema import (
    ConfigSourceSection,
    EndpointPickerSection,
    KubernetesSection,
)
from xds_server.istio.kubernetes.wanted import NAMESPACE

FOLDER = ISTIO / "kubernetes"
FILES = ("rbac.yaml", "patch-role.yaml")
INSTANCES = ("a100-0", "a100-1", "l4-0")
CHOICES = {"none": (), **{each: (each,) for each in COMPONENTS}, "all": COMPONENTS}
LISTENERS = {
    "config-source": ConfigSourceSection().listen,
    "endpoint-picker": EndpointPickerSection().listen,
}


def roles(*files: str) -> list[dict]:
    return list(chain.from_iterable(documents(FOLDER / file) for file in files))


@pytest.mark.parametrize("file", FILES)
def test_roles_are_bound_to_our_account_alone_and_allow_nothing_that_deletes(file):
    for each in roles(file):
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
    assert rules_of(roles(file))


def test_the_roles_name_the_lease_and_namespace_that_are_the_default():
    names = {name for rule in rules_of(roles("rbac.yaml")) for name in rule.names}
    assert names == {KubernetesSection().lease}
    (namespace,) = {
        each.namespace for each in rules_of(roles("rbac.yaml")) if each.plural == "leases"
    }
    assert namespace == NAMESPACE


def test_the_way_through_the_api_holds_the_roles_and_gives_the_pod_its_token():
    component = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert "rbac.yaml" in component["resources"]
    (patch,) = (each["path"] for each in component["patches"])
    (token,) = roles(patch)
    server = next(
        each for each in documents(KUBERNETES / "server.yaml") if each["kind"] == token["kind"]
    )
    assert server["metadata"]["name"] == token["metadata"]["name"]
    pod = server["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == ACCOUNT["name"]
    assert token["spec"]["template"]["spec"] == {"automountServiceAccountToken": True}


def test_every_way_is_a_line_of_the_kustomization():
    text = (ISTIO / "kustomization.yaml").read_text()
    listed = re.findall(r"^  (?:# )?- ([a-z-]+) +# istio\.(\w+):", text, re.MULTILINE)
    assert {name for name, _ in listed} == set(COMPONENTS)
    assert all(section == name.replace("-", "_") for name, section in listed)
    assert yaml.safe_load(text)["components"] == ["kubernetes"]


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "deploy").rglob("kustomization.yaml")),
    ids=lambda each: each.parent.name,
)
def test_no_folder_is_built_from_one_that_holds_it(path):
    kustomization = yaml.safe_load(path.read_text())
    assert kustomization["kind"] == (
        "Component" if path.parent.parent == ISTIO else "Kustomization"
    )
    asked = [*kustomization["resources"], *kustomization.get("components", ())]
    asked += [each["path"] for each in kustomization.get("patches", ())]
    for each in asked:
        target = (path.parent / each).resolve()
        assert target.exists()
        # kustomize takes that for a cycle, and builds nothing.
        assert target not in path.parents


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
async def test_a_kustomization_of_a_users_builds_with_any_of_the_ways(chosen, tmp_path):
    if kustomize() is None:
        return  # Nothing to ask; the tests of the files hold all the same.
    plain = await built(KUBERNETES)
    found = await built(with_components(tmp_path / "mine", chosen))
    keys = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in found
    ]
    assert len(set(keys)) == len(keys)
    # Nothing of the plain manifests is lost, and nothing but the server's pods changes.
    for each in plain:
        if each["kind"] == "StatefulSet":
            continue
        assert each in found
    if chosen == ("kubernetes",):
        assert found == await built(ISTIO)
    (server,) = (each for each in found if each["kind"] == "StatefulSet")
    pod = server["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is ("kubernetes" in chosen)
    (container,) = pod["containers"]
    mounts = {each["name"] for each in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in server["spec"]["volumeClaimTemplates"]}
    assert mounts == {each["name"] for each in pod["volumes"]} | claims
    # Every port that the server listens on is opened for somebody, and no other.
    labels = server["spec"]["template"]["metadata"]["labels"]
    mine = [
        each["spec"]
        for each in found
        if each["kind"] == "NetworkPolicy"
        and (wanted := each["spec"]["podSelector"].get("matchLabels"))
        and wanted.items() <= labels.items()
    ]
    rules = [rule for policy in mine for rule in policy.get("ingress", ())]
    assert all(rule["from"] for rule in rules), "an empty list lets everybody in"
    opened = {port["port"] for rule in rules for port in rule["ports"]}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert opened == set(ports.values())
    # Nothing is asked of anybody but for the ways that ask.
    asks = [rule for policy in mine for rule in policy.get("egress", ())]
    assert bool(asks) is bool({"kubernetes", "probe"} & set(chosen))
    assert all(rule["ports"] for rule in asks)
    # Services lead to ports that there are.
    for each in found:
        if each["kind"] == "Service":
            assert each["spec"]["selector"].items() <= labels.items()
            for port in each["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]


@pytest.mark.parametrize(("component", "listen"), LISTENERS.items(), ids=LISTENERS)
def test_a_component_opens_the_port_that_is_the_default(component, listen):
    port = int(listen.rpartition(":")[2])
    (service,) = documents(ISTIO / component / "service.yaml")
    (patch,) = documents(ISTIO / component / "port.yaml")
    (policy,) = documents(ISTIO / component / "network-policy.yaml")
    assert [each["port"] for each in service["spec"]["ports"]] == [port]
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert [each["containerPort"] for each in container["ports"]] == [port]
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    # What the file of the fleet has to say is said where the port is.
    assert f"`listen: 0.0.0.0:{port}`" in (ISTIO / component / "service.yaml").read_text()


def test_a_picker_has_the_time_that_answers_need_to_end():
    section = EndpointPickerSection(stop_delay_s=5)
    (patch,) = documents(ISTIO / "endpoint-picker/port.yaml")
    granted = patch["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert granted > section.stop_delay_s + section.stop_grace_s


def test_the_root_delegates_to_the_object_that_we_make():
    (root,) = roles("root-virtualservice.yaml")
    (route,) = root["spec"]["http"]
    assert set(route) == {"name", "match", "delegate"}, "Istio takes nothing else beside a delegate"
    assert route["delegate"]["name"] == object_name("chat")


@pytest.mark.parametrize(
    ("files", "kubernetes", "tiers"),
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
async def test_the_server_lacks_no_verb_and_needs_every_one(tmp_path, files, kubernetes, tiers):
    async with running_api() as api:
        rules = rules_of(roles(*files))
        if kubernetes:
            rules = [each for each in rules if each.plural == "leases" or "patch" in each.verbs]
            await api.put(admins())
        else:
            (root,) = roles("root-virtualservice.yaml")
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
