"""`xds-server istio apply`: what would be written, what is, and what is in the way."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
import yaml
from typer.testing import CliRunner

from tests.fakes.kube_api import Rule
from tests.fakes.mesh_config import mesh_config, write_config
from xds_server.cli import app
from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.lease import LeaseRules

PATCH = [{"model": "chat", "namespace": "ai", "virtual_service": "llm", "route": "chat"}]
LEASE = lease.ref("gpu-xds", "gpu-xds-istio")


@pytest.fixture
def apply(api, tmp_path):
    """Return the command; it runs in a thread, because the server is in this one."""

    async def run(*flags, token="admin-token", sections=None, **kubernetes):
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig", token)
        section = {"kubeconfig": str(kubeconfig), **kubernetes}
        document = mesh_config(kubernetes=section, **(sections or {}))
        path = write_config(tmp_path / "fleet.yaml", document)
        arguments = ["istio", "apply", str(path), *flags]
        return await asyncio.to_thread(CliRunner().invoke, app, arguments)

    return run


async def test_a_dry_run_prints_what_would_be_written_and_the_server_keeps_nothing(api, apply):
    done = await apply("--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "# VirtualService ai/gpu-xds-chat: would create (primary=100" in done.stdout
    (printed,) = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert printed["spec"]["http"][0]["route"][0]["weight"] == 100
    assert not api.store.objects
    assert {each.query.get("dryRun") for each in api.asked("create", "virtualservices")} == {"All"}
    assert "delegates to ai/gpu-xds-chat" in done.stderr


async def test_what_is_applied_is_there_and_not_written_twice(api, apply):
    done = await apply("--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(each["action"], each["object"]) for each in told["objects"]] == [
        ("create", "VirtualService ai/gpu-xds-chat")
    ]
    assert told["written"] is True
    assert api.object("virtualservices", "ai", "gpu-xds-chat")
    done = await apply()
    assert "# VirtualService ai/gpu-xds-chat: unchanged" in done.stdout
    assert len(api.writes()) == 1


async def test_offline_it_prints_objects_without_any_server(api, apply):
    await api.stop()
    done = await apply("--offline")
    assert done.exit_code == 0, done.stderr
    assert "kind: VirtualService" in done.stdout
    done = await apply("--offline", patch=PATCH)
    assert "depends on the VirtualService" in done.stdout
    done = await apply("--dry-run")
    assert done.exit_code == 1
    assert "no answer" in done.stderr


async def test_a_patch_is_printed_as_its_operations(api, apply):
    hosts = ("vllm-70b", "vllm-8b", "busy")
    route = [{"destination": {"host": each}, "weight": 50} for each in hosts]
    await api.put(
        {
            "apiVersion": "networking.istio.io/v1",
            "kind": "VirtualService",
            "metadata": {"name": "llm", "namespace": "ai"},
            "spec": {"http": [{"name": "chat", "route": route}]},
        }
    )
    done = await apply("--dry-run", patch=PATCH)
    assert done.exit_code == 0, done.stderr
    (operations,) = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert [each["op"] for each in operations] == ["test"] * 5 + ["add"] * 3
    assert operations[0] == {"op": "test", "path": "/spec/http/0/name", "value": "chat"}


async def test_missing_verbs_are_listed_with_their_rules_before_anything_is_tried(api, apply):
    token = api.add_user("weak", Rule(("get", "watch"), "networking.istio.io"))
    done = await apply("--dry-run", token=token)
    assert done.exit_code == 1
    assert (
        "in namespace gpu-xds: {apiGroups: [coordination.k8s.io], resources: [leases], "
        "verbs: [get, create, update]}" in done.stderr
    )
    assert "resources: [virtualservices], verbs: [create, update]}" in done.stderr
    assert "# VirtualService ai/gpu-xds-chat: would failed" not in done.stdout
    assert "the verb 'create' on virtualservices" in done.stdout


async def test_while_a_server_keeps_the_objects_nothing_is_written_beside_it(api, apply):
    rules = LeaseRules.of(15)
    held = lease.taken(None, target=LEASE, me="xds-server-0_x", rules=rules, wall=time.time())
    await api.put(held)
    done = await apply()
    assert done.exit_code == 1
    assert "xds-server-0_x holds Lease gpu-xds/gpu-xds-istio" in done.stderr
    assert not api.writes("virtualservices")
    assert (await apply("--dry-run")).exit_code == 0
    old = lease.taken(None, target=LEASE, me="gone", rules=LeaseRules.of(3), wall=time.time() - 60)
    await api.put(old)
    assert (await apply()).exit_code == 0


async def test_a_server_whose_clock_is_behind_keeps_the_objects_all_the_same(api, apply):
    rules, behind_s = LeaseRules.of(6), 3600.0

    async def renew():
        while True:
            wall = time.time() - behind_s
            await api.put(lease.taken(None, target=LEASE, me="behind", rules=rules, wall=wall))
            await asyncio.sleep(rules.retry_s)

    renewing = asyncio.create_task(renew())
    try:
        done = await apply()
    finally:
        renewing.cancel()
    assert done.exit_code == 1
    assert "control plane behind holds Lease" in done.stderr
    assert not api.writes("virtualservices")


async def test_an_object_of_somebody_elses_is_refused_by_name(api, apply):
    await api.put(
        {
            "apiVersion": "networking.istio.io/v1",
            "kind": "VirtualService",
            "metadata": {"name": "gpu-xds-chat", "namespace": "ai"},
            "spec": {"hosts": ["x"]},
        }
    )
    done = await apply("--dry-run")
    assert done.exit_code == 1
    assert "# VirtualService ai/gpu-xds-chat: refused" in done.stdout
    assert "was not made by gpu-xds" in done.stdout


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"versions": []}, 1, "install Istio's CRDs"),
        ({"kubeconfig": "/nonexistent/file"}, 1, "no kubeconfig /nonexistent/file"),
        ({"context": "other"}, 1, "context other"),
    ],
    ids=["no-crds", "no-kubeconfig", "no-context"],
)
async def test_what_is_in_the_way_is_said_in_a_sentence(api, apply, change, code, said):
    api.versions = change.pop("versions", api.versions)
    done = await apply("--dry-run", **change)
    assert done.exit_code == code
    assert said in done.stderr


def test_without_the_section_there_is_nothing_to_write(tmp_path):
    path = write_config(tmp_path / "fleet.yaml", mesh_config())
    done = CliRunner().invoke(app, ["istio", "apply", str(path)])
    assert done.exit_code == 2
    assert "no istio.kubernetes section" in done.stderr
    done = CliRunner().invoke(app, ["istio", "apply", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
