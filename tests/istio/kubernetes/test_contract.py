"""What the client meets, on the double and, where there is one, on a real API server: the double says the truth."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.kube_api import Rule, running_api
from tests.fakes.real_kube import IS_THERE, WHY_SKIPPED, real_kube
from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.auth import SignIn
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import Cause, KubernetesError
from xds_server.istio.kubernetes.lease import LeaseRules
from xds_server.istio.kubernetes.objects import ref_of

REF = ref_of("virtualservices", "ai", "llm", version="v1")
LEASE = lease.ref("gpu-xds", "gpu-xds-istio")
RULES = LeaseRules.of(15)
WEAK = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "weak", "namespace": "ai"},
    "rules": [
        {"apiGroups": ["networking.istio.io"], "resources": ["virtualservices"], "verbs": ["get"]}
    ],
}
BOUND = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "weak", "namespace": "ai"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "weak"},
    "subjects": [
        {"kind": "ServiceAccount", "name": "xds-server", "namespace": "gpu-xds"},
    ],
}


@pytest.fixture(
    params=[
        "double",
        pytest.param("real", marks=pytest.mark.skipif(not IS_THERE, reason=WHY_SKIPPED)),
    ]
)
async def clients(request, tmp_path):
    """Yield a client that may do everything and one that may only read VirtualServices."""
    if request.param == "double":
        async with running_api() as api:
            verbs = Rule(("get",), "networking.istio.io", "virtualservices", "ai")
            weak = api.add_user("weak", verbs)
            async with _pair(api, tmp_path, weak) as pair:
                yield pair
    else:
        async with real_kube(tmp_path) as kube:
            await kube.apply([WEAK, BOUND])
            async with _pair(kube, tmp_path, "server-token") as pair:
                yield pair


class _pair:  # noqa: N801 - used like a function
    def __init__(self, server, directory, weak):
        paths = [
            server.kubeconfig(directory / "kubeconfig"),
            server.kubeconfig(directory / "weak", weak),
        ]
        self.clients = [KubernetesClient(SignIn(kubeconfig=str(each))) for each in paths]

    async def __aenter__(self):
        return self.clients

    async def __aexit__(self, *_):
        for each in self.clients:
            await each.close()


def service(weight=100, *, name="llm", metadata=None, **spec):
    route = [{"destination": {"host": "vllm.ai.svc.cluster.local"}, "weight": weight}]
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": name, "namespace": "ai", **(metadata or {})},
        "spec": {"http": [{"name": "chat", "route": route}], **spec},
    }


async def refusal(awaitable) -> KubernetesError:
    with pytest.raises(KubernetesError) as caught:
        await awaitable
    return caught.value


async def test_the_whole_contract(clients):
    """One test, because a real server takes its time to start."""
    client, weak = clients
    await versions_and_writes(client)
    await conflicts(client)
    await patches(client)
    await validation(client)
    await permissions(client, weak)
    await watches(client)
    await leases(client)


async def versions_and_writes(client):
    assert (await client.versions("networking.istio.io"))[0] == "v1"
    assert await client.versions("nobody.io") == ()
    assert (await refusal(client.get(REF))).cause is Cause.NOT_FOUND
    assert (await client.create(REF, service(), dry_run=True))["spec"]
    assert (await refusal(client.get(REF))).cause is Cause.NOT_FOUND
    made = await client.create(REF, service())
    assert made["spec"] == service()["spec"], "nothing is put in by the server"
    assert made["metadata"]["generation"] == 1
    # The same again is no new version: no push of anybody's.
    again = await client.replace(REF, {**made, "metadata": _sent(made)})
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    other = {**service(70), "metadata": _sent(made)}
    stored = await client.replace(REF, other)
    assert stored["metadata"]["generation"] == 2
    assert "gpu-xds" in {each["manager"] for each in stored["metadata"]["managedFields"]}
    assert [each["metadata"]["name"] for each in await client.all_of(REF)] == ["llm"]


def _sent(document):
    metadata = dict(document["metadata"])
    metadata.pop("managedFields", None)
    return metadata


async def conflicts(client):
    old = await client.get(REF)
    await client.replace(REF, {**service(60), "metadata": _sent(old)})
    error = await refusal(client.replace(REF, {**service(50), "metadata": _sent(old)}))
    assert error.cause is Cause.CONFLICT
    assert "the object has been modified" in error.said
    error = await refusal(client.create(REF, service()))
    assert error.cause is Cause.CONFLICT
    assert "already exists" in error.said
    error = await refusal(client.replace(REF, service(50)))
    assert error.cause is Cause.INVALID
    assert "metadata.resourceVersion" in error.said


async def patches(client):
    path = "/spec/http/0/route/0"
    operations = [
        {"op": "test", "path": "/spec/http/0/name", "value": "chat"},
        {
            "op": "test",
            "path": f"{path}/destination",
            "value": {"host": "vllm.ai.svc.cluster.local"},
        },
        {"op": "add", "path": f"{path}/weight", "value": 33},
    ]
    stored = await client.patch(REF, operations)
    assert stored["spec"]["http"][0]["route"][0]["weight"] == 33
    version = stored["metadata"]["resourceVersion"]
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    newer = await client.patch(REF, [same, {**operations[2], "value": 32}])
    assert newer["spec"]["http"][0]["route"][0]["weight"] == 32
    error = await refusal(client.patch(REF, [same, {**operations[2], "value": 31}]))
    assert error.cause is Cause.INVALID
    await client.patch(REF, operations)
    for at, value in ((0, "other"), (1, {"host": "vllm.ai.svc.cluster.local", "subset": "v1"})):
        wrong = [dict(each) for each in operations]
        wrong[at]["value"], wrong[2]["value"] = value, 44
        error = await refusal(client.patch(REF, wrong))
        assert error.cause is Cause.INVALID
        assert error.said.startswith("422")
    gone = [{"op": "test", "path": "/spec/http/7/name", "value": "chat"}]
    assert (await refusal(client.patch(REF, gone))).cause is Cause.INVALID
    assert (await client.get(REF))["spec"]["http"][0]["route"][0]["weight"] == 33


async def validation(client):
    error = await refusal(client.create(REF, service(name="llm2", hostz=["a"])))
    assert error.cause is Cause.INVALID
    assert 'unknown field "spec.hostz"' in error.said
    error = await refusal(client.create(REF, service("90", name="llm2")))
    assert error.cause is Cause.INVALID
    assert "must be of type integer" in error.said
    nowhere = ref_of("virtualservices", "nowhere", "llm", version="v1")
    body = service(metadata={"namespace": "nowhere"})
    error = await refusal(client.create(nowhere, body))
    assert error.cause is Cause.NOT_FOUND
    assert "nowhere" in error.said


async def permissions(client, weak):
    assert (await weak.get(REF))["spec"]
    live = await client.get(REF)
    tries = {
        "update": weak.replace(REF, {**service(1), "metadata": _sent(live)}),
        "create": weak.create(REF, service(name="llm3")),
        "patch": weak.patch(REF, [{"op": "test", "path": "/kind", "value": "x"}]),
        "list": weak.all_of(REF),
        "watch": anext(weak.watch(REF)),
    }
    for verb, tried in tries.items():
        error = await refusal(tried)
        assert error.cause is Cause.FORBIDDEN, verb
        assert f"the verb '{verb}' on virtualservices.networking.istio.io" in str(error)
        assert not await weak.may(verb, REF)
    assert await weak.may("get", REF)
    assert await client.may("update", REF)


async def watches(client):
    watch = client.watch(REF)
    kind, found = await asyncio.wait_for(anext(watch), 10)
    assert (kind, found["metadata"]["name"]) == ("ADDED", "llm")
    await client.create(REF, service(name="neighbor"))
    await client.patch(REF, [{"op": "add", "path": "/spec/http/0/route/0/weight", "value": 21}])
    while True:
        kind, found = await asyncio.wait_for(anext(watch), 10)
        if kind != "BOOKMARK":
            break
    assert (kind, found["metadata"]["name"]) == ("MODIFIED", "llm")
    assert found["spec"]["http"][0]["route"][0]["weight"] == 21
    await watch.aclose()


async def leases(client):
    first = lease.taken(None, target=LEASE, me="a", rules=RULES, wall=time.time())
    stored = await client.create(LEASE, first)
    assert stored["spec"] == first["spec"], "times are kept as they were written"
    renewed = lease.taken(stored, target=LEASE, me="a", rules=RULES, wall=time.time())
    newer = await client.replace(LEASE, renewed)
    late = lease.taken(stored, target=LEASE, me="b", rules=RULES, wall=time.time())
    assert (await refusal(client.replace(LEASE, late))).cause is Cause.CONFLICT
    freed = await client.replace(LEASE, lease.released(newer, target=LEASE, wall=time.time()))
    assert lease.see(freed, None, 0.0).is_free
    broken = lease.taken(freed, target=LEASE, me="b", rules=RULES, wall=time.time())
    broken["spec"]["leaseDurationSeconds"] = 0
    assert (await refusal(client.replace(LEASE, broken))).cause is Cause.INVALID
    broken["spec"] |= {"leaseDurationSeconds": 15, "renewTime": "yesterday"}
    assert (await refusal(client.replace(LEASE, broken))).cause is Cause.INVALID
