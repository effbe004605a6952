"""The Kubernetes manifests, without a cluster: shape, references, and agreement with the code's defaults.

What a cluster would refuse is found here by a small schema of what the manifests use: a key that is not in it
is a spelling mistake until somebody adds it on purpose.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from sidecar_agent.sources import ENVIRONMENT, Flags
from sidecar_agent.sources import load as load_agent
from tests.fakes.envoy import validate
from xds_server.config.load import load_file
from xds_server.config.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
EXAMPLE = "engine-with-sidecar.yaml"
NO_MANIFESTS = {"kustomization.yaml", "envoy-bootstrap.yaml"}

KINDS = {
    "Namespace": ("v1", set()),
    "ServiceAccount": ("v1", {"automountServiceAccountToken"}),
    "Role": ("rbac.authorization.k8s.io/v1", {"rules"}),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", {"roleRef", "subjects"}),
    "Service": ("v1", {"spec"}),
    "PodDisruptionBudget": ("policy/v1", {"spec"}),
    "StatefulSet": ("apps/v1", {"spec"}),
    "DaemonSet": ("apps/v1", {"spec"}),
    "Deployment": ("apps/v1", {"spec"}),
    "NetworkPolicy": ("networking.k8s.io/v1", {"spec"}),
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"spec"}),
    "PodMonitor": ("monitoring.coreos.com/v1", {"spec"}),
}
SPEC_KEYS = {
    "Service": {"clusterIP", "publishNotReadyAddresses", "selector", "ports"},
    "PodDisruptionBudget": {"maxUnavailable", "selector"},
    "StatefulSet": {
        *("serviceName", "replicas", "podManagementPolicy", "selector", "template"),
        "volumeClaimTemplates",
    },
    "DaemonSet": {"selector", "updateStrategy", "template"},
    "Deployment": {"replicas", "strategy", "selector", "template"},
    "NetworkPolicy": {"podSelector", "policyTypes", "ingress", "egress"},
    "ServiceMonitor": {"selector", "endpoints"},
    "PodMonitor": {"selector", "podMetricsEndpoints"},
}
POD_KEYS = {
    *("serviceAccountName", "automountServiceAccountToken", "terminationGracePeriodSeconds"),
    *("securityContext", "affinity", "containers", "volumes", "nodeSelector", "tolerations"),
    "runtimeClassName",
}
CONTAINER_KEYS = {
    *("name", "image", "command", "args", "env", "ports", "startupProbe", "livenessProbe"),
    *("readinessProbe", "resources", "securityContext", "volumeMounts", "lifecycle"),
}
PROBE_KEYS = {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}
DEFAULTS = {row.name: row for row in SETTINGS}
XDS_PORT = int(str(DEFAULTS["xds_listen"].default).rpartition(":")[2])
ADMIN_PORT = int(str(DEFAULTS["admin_listen"].default).rpartition(":")[2])
AGENT_PORT = int(
    load_agent(Flags(instances=("a=http://127.0.0.1:1",)), {}).admin.rpartition(":")[2]
)


def documents() -> list[tuple[str, dict]]:
    return [
        (path.name, document)
        for path in sorted(FOLDER.glob("*.yaml"))
        if path.name not in NO_MANIFESTS
        for document in yaml.safe_load_all(path.read_text())
    ]


ALL = documents()
IDS = [f"{document['kind']} {document['metadata']['name']}" for _, document in ALL]
WORKLOADS = [each for _, each in ALL if each["kind"] in {"StatefulSet", "DaemonSet", "Deployment"}]
CONTAINERS = [
    pytest.param(workload, container, id=f"{workload['metadata']['name']}/{container['name']}")
    for workload in WORKLOADS
    for container in workload["spec"]["template"]["spec"]["containers"]
]
AGENTS = [each for each in CONTAINERS if each.values[1]["name"] == "agent"]


def of_kind(kind: str) -> dict[str, dict]:
    return {each["metadata"]["name"]: each for _, each in ALL if each["kind"] == kind}


def labels_of(workload: dict) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def environment(container: dict) -> dict[str, str]:
    """Return the variables; what the kubelet fills in becomes something of its kind."""
    filled = {"spec.nodeName": "host-1", "status.hostIP": "10.0.0.7"}
    filled |= {"metadata.name": "llama-3-70b-5d4f-x2", "status.podIP": "10.1.0.7"}
    return {
        each["name"]: each["value"]
        if "value" in each
        else filled[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", ())
    }


def arguments(container: dict) -> list[str]:
    values = environment(container)
    return [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], each) for each in container["args"]]


@pytest.mark.parametrize(("file", "document"), ALL, ids=IDS)
def test_every_manifest_is_of_a_known_shape(file, document):
    version, keys = KINDS[document["kind"]]
    assert document["apiVersion"] == version
    assert set(document) == {"apiVersion", "kind", "metadata"} | keys
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
    assert set(document["metadata"]) <= {"name", "namespace", "labels"}
    assert set(document.get("spec", {})) <= SPEC_KEYS.get(document["kind"], set())
    if file != EXAMPLE:
        assert "namespace" not in document["metadata"], "the kustomization says it"


def test_names_are_unique():
    assert len(set(IDS)) == len(IDS)


def test_the_kustomization_holds_every_file_but_the_example():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    files = {name for name, _ in ALL}
    assert set(kustomization["resources"]) == files - {EXAMPLE}
    for generator in kustomization["configMapGenerator"]:
        for each in generator["files"]:
            assert (FOLDER / each.partition("=")[2]).exists()
    (namespace,) = of_kind("Namespace")
    assert kustomization["namespace"] == namespace
    assert {each["name"] for each in kustomization["images"]} == {"gpu-xds"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each["metadata"]["name"])
def test_pods_are_found_restricted_and_whole(workload):
    template = workload["spec"]["template"]
    pod = template["spec"]
    assert set(pod) <= POD_KEYS
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels_of(workload).items()
    assert pod["serviceAccountName"] in of_kind("ServiceAccount")
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    claims = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())}
    volumes = {each["name"] for each in pod["volumes"]} | claims
    mounted = {each["name"] for one in pod["containers"] for each in one["volumeMounts"]}
    assert mounted == volumes
    for volume in pod["volumes"]:
        assert "hostPath" not in volume
        if "configMap" in volume:
            generated = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
            names = {each["name"] for each in generated["configMapGenerator"]}
            assert volume["configMap"]["name"] in names


@pytest.mark.parametrize(("workload", "container"), CONTAINERS)
def test_containers_are_confined_and_their_probes_reach_a_port(workload, container):
    assert set(container) <= CONTAINER_KEYS
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    if container["image"] == "gpu-xds":
        assert context["readOnlyRootFilesystem"] is True
        assert container["resources"]["limits"]["memory"]
    ports = {each["name"] for each in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(name, {})
        assert set(probe) <= PROBE_KEYS
        if probe:
            assert probe["httpGet"]["port"] in ports
            assert probe["httpGet"]["path"] in {"/healthz", "/readyz"}


def test_ports_have_one_meaning_per_pod():
    for workload in WORKLOADS:
        ports = [
            each["containerPort"]
            for container in workload["spec"]["template"]["spec"]["containers"]
            for each in container["ports"]
        ]
        assert len(set(ports)) == len(ports)


def test_the_service_leads_to_the_server_where_it_listens():
    service, server = of_kind("Service")["xds-server"], of_kind("StatefulSet")["xds-server"]
    assert server["spec"]["serviceName"] == "xds-server"
    assert service["spec"]["selector"].items() <= labels_of(server).items()
    (container,) = server["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": XDS_PORT, "admin": ADMIN_PORT}
    assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == ports
    values = environment(container)
    assert set(values) <= {row.env for row in SETTINGS}
    assert values["XDS_SERVER_XDS_LISTEN"] == f"0.0.0.0:{XDS_PORT}"
    assert values["XDS_SERVER_ADMIN_LISTEN"] == f"0.0.0.0:{ADMIN_PORT}"


def test_one_control_plane_does_not_wait_for_the_other():
    spec = of_kind("StatefulSet")["xds-server"]["spec"]
    assert spec["replicas"] == 2
    assert spec["podManagementPolicy"] == "Parallel"
    assert of_kind("PodDisruptionBudget")["xds-server"]["spec"]["maxUnavailable"] == 1


def test_the_fleet_needs_the_token_that_both_sides_mount():
    config = load_file(FOLDER / "config/fleet.yaml")
    assert config.discovers
    for workload in WORKLOADS:
        pod = workload["spec"]["template"]["spec"]
        (token,) = (each for each in pod["volumes"] if each["name"] == "token")
        assert token["secret"]["secretName"] == "agents-token"
        # Readable for the group that the pod's files belong to, if that is the program's.
        assert token["secret"]["defaultMode"] == 0o440
        assert pod["securityContext"]["fsGroup"] == 10001


@pytest.mark.parametrize(("workload", "container"), AGENTS)
def test_agents_are_told_what_they_understand(workload, container):
    values = environment(container)
    known = {*ENVIRONMENT, "NODE_NAME", "HOST_IP", "POD_NAME", "POD_IP"}
    assert {each for each in values if not each.startswith("NVIDIA_")} <= known
    flags = dict(each.removeprefix("--").split("=", 1) for each in arguments(container))
    settings = load_agent(
        Flags(instances=(flags["instance"],), node=flags["node"]),
        {key: value for key, value in values.items() if key in ENVIRONMENT},
    )
    (instance,) = settings.instances
    config = load_file(FOLDER / "config/fleet.yaml")
    (model,) = (each for each in config.topology.models if each.name == instance.model)
    assert instance.tier in {tier.name for tier in model.tiers}
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+:\d+", instance.endpoint)
    replicas = of_kind("StatefulSet")["xds-server"]["spec"]["replicas"]
    assert settings.control_plane.address == tuple(
        f"xds-server-{number}.xds-server:{XDS_PORT}" for number in range(replicas)
    ), "every control plane hears from every host"
    (port,) = container["ports"]
    assert settings.admin == f"0.0.0.0:{port['containerPort']}"
    assert port["containerPort"] == AGENT_PORT


def test_an_engine_ends_after_its_agent_and_that_after_the_drain():
    pod = of_kind("Deployment")["llama-3-70b"]["spec"]["template"]["spec"]
    engine, agent = pod["containers"]
    waits = engine["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f'("127.0.0.1", {AGENT_PORT})' in waits
    drain = agent["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"--admin 127.0.0.1:{AGENT_PORT}" in drain
    assert 'sidecar-agent drain "$POD_NAME"' in drain
    timeout_s = int(re.search(r"--timeout (\d+)", drain)[1])
    assert pod["terminationGracePeriodSeconds"] > timeout_s
    compile(waits, "preStop", "exec")


def test_policies_select_pods_and_open_the_ports_that_are_used():
    policies = of_kind("NetworkPolicy")
    labels = [labels_of(each) for each in WORKLOADS]
    for policy in policies.values():
        wanted = policy["spec"]["podSelector"].get("matchLabels", {})
        assert any(wanted.items() <= each.items() for each in labels)
    assert policies["default-deny"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}

    def opened(name: str) -> set[int]:
        rules = policies[name]["spec"]["ingress"]
        assert all(rule["from"] for rule in rules), "an empty list lets everybody in"
        return {port["port"] for rule in rules for port in rule["ports"]}

    assert opened("xds-server") == {XDS_PORT, ADMIN_PORT}
    assert opened("sidecar-agent") == {AGENT_PORT}
    assert opened("engine-with-sidecar") == {8000, AGENT_PORT}
    admin, *more = (
        rule
        for rule in policies["xds-server"]["spec"]["ingress"]
        if {"protocol": "TCP", "port": ADMIN_PORT} in rule["ports"]
    )
    assert not more
    assert all("podSelector" in each and "namespaceSelector" in each for each in admin["from"])


def test_monitors_find_ports_by_their_names():
    service = of_kind("Service")["xds-server"]
    monitor = of_kind("ServiceMonitor")["xds-server"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    names = {each["name"] for each in service["spec"]["ports"]}
    assert {each["port"] for each in monitor["endpoints"]} <= names
    agents = of_kind("DaemonSet")["sidecar-agent"]
    monitor = of_kind("PodMonitor")["sidecar-agent"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels_of(agents).items()
    names = {
        port["name"]
        for container in agents["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    }
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} == names


def test_nobody_may_use_the_cluster_through_our_accounts():
    assert all(
        each["automountServiceAccountToken"] is False for each in of_kind("ServiceAccount").values()
    )
    for binding in of_kind("RoleBinding").values():
        assert binding["roleRef"]["name"] in of_kind("Role")
        assert all(each["kind"] != "ServiceAccount" for each in binding["subjects"])
    for role in of_kind("Role").values():
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"]
            if rule["resources"] != ["pods/portforward"]:
                assert set(rule["verbs"]) <= {"get", "list", "watch"}


def bootstraps() -> tuple[dict, dict]:
    plain = yaml.safe_load((ROOT / "envoy/bootstrap-delta.yaml").read_text())
    return plain, yaml.safe_load((FOLDER / "envoy-bootstrap.yaml").read_text())


def test_the_bootstrap_differs_from_the_plain_one_in_its_two_control_planes_alone():
    plain, two = bootstraps()
    (cluster,) = two["static_resources"]["clusters"]
    hosts = []
    for number, group in enumerate(cluster["load_assignment"].pop("endpoints")):
        assert group["priority"] == number
        (endpoint,) = group["lb_endpoints"]
        hosts.append(endpoint["endpoint"]["address"]["socket_address"])
    replicas = of_kind("StatefulSet")["xds-server"]["spec"]["replicas"]
    assert hosts == [
        {"address": f"xds-server-{number}.xds-server.gpu-xds", "port_value": XDS_PORT}
        for number in range(replicas)
    ]
    del plain["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]
    for key in ("health_checks", "close_connections_on_host_health_failure"):
        del cluster[key]
    (options,) = cluster["typed_extension_protocol_options"].values()
    del options["common_http_protocol_options"]
    assert two == plain


@pytest.mark.envoy
async def test_envoy_accepts_the_bootstrap(tmp_path):
    _, two = bootstraps()
    assert await validate(two, tmp_path) == ""
