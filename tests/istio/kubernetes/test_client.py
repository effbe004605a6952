"""The real client library against a server that enforces what a real one does."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.kube_api import Rule
from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.auth import SignIn, own_namespace, signed_in
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import AuthError, Cause, KubernetesError, Ref
from xds_server.istio.kubernetes.lease import LeaseRules

VS = Ref(
    group="networking.istio.io",
    version="v1",
    plural="virtualservices",
    kind="VirtualService",
    namespace="ai",
    name="llm",
)


def service(weight=100, *, name="llm", version=None, **spec):
    route = [{"destination": {"host": "vllm.ai.svc.cluster.local"}, "weight": weight}]
    metadata = {"name": name, "namespace": "ai"}
    if version:
        metadata["resourceVersion"] = version
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": metadata,
        "spec": {"http": [{"name": "chat", "route": route}], **spec},
    }


async def refusal(awaitable) -> KubernetesError:
    with pytest.raises(KubernetesError) as caught:
        await awaitable
    return caught.value


async def test_what_is_written_is_read_back(api, client):
    made = await client.create(VS, service(70))
    assert (await client.get(VS))["spec"] == made["spec"]
    made["spec"]["http"][0]["route"][0]["weight"] = 30
    stored = await client.replace(VS, made)
    assert stored["metadata"]["generation"] == 2
    assert [each["metadata"]["name"] for each in await client.all_of(VS)] == ["llm"]
    assert [each["manager"] for each in stored["metadata"]["managedFields"]] == ["gpu-xds"]
    assert {each.query["fieldValidation"] for each in api.writes()} == {"Strict"}


async def test_an_old_version_is_a_conflict(api, client):
    old = await client.create(VS, service())
    await api.put(service(10))
    error = await refusal(client.replace(VS, old))
    assert error.cause is Cause.CONFLICT
    assert "Somebody else wrote VirtualService ai/llm" in str(error)
    error = await refusal(client.create(VS, service()))
    assert error.cause is Cause.CONFLICT


async def test_a_json_patch_with_a_failed_test_changes_nothing(api, client):
    await api.put(service(90))
    patch = [
        {"op": "test", "path": "/spec/http/0/name", "value": "chat"},
        {"op": "add", "path": "/spec/http/0/route/0/weight", "value": 5},
    ]
    stored = await client.patch(VS, patch)
    assert stored["spec"]["http"][0]["route"][0]["weight"] == 5
    patch[0]["value"], patch[1]["value"] = "other", 6
    error = await refusal(client.patch(VS, patch))
    assert error.cause is Cause.INVALID
    assert (await client.get(VS))["spec"]["http"][0]["route"][0]["weight"] == 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (service(hostz=["a"]), 'unknown field "spec.hostz"'),
        (service("90"), "must be of type integer"),
        ({**service(), "kind": "Other"}, "does not match"),
    ],
    ids=["unknown-field", "wrong-type", "wrong-kind"],
)
async def test_what_the_schema_does_not_take_is_told_with_the_field(client, body, said):
    error = await refusal(client.create(VS, body))
    assert error.cause is Cause.INVALID
    assert said in str(error)
    assert (await refusal(client.get(VS))).cause is Cause.NOT_FOUND


@pytest.mark.parametrize("verb", ["get", "create", "update", "patch", "list", "watch"])
async def test_a_missing_verb_is_named_with_the_rule_that_allows_it(api, tmp_path, verb):
    await api.put(service())
    others = tuple({"get", "create", "update", "patch", "list", "watch"} - {verb})
    token = api.add_user("weak", Rule(others, plural="virtualservices", namespace="ai"))
    sign_in = SignIn(kubeconfig=str(api.kubeconfig(tmp_path / "weak", token)))
    async with KubernetesClient(sign_in) as client:
        calls = {
            "get": lambda: client.get(VS),
            "list": lambda: client.all_of(VS),
            "create": lambda: client.create(VS, service()),
            "update": lambda: client.replace(VS, service(version="1")),
            "patch": lambda: client.patch(VS, []),
            "watch": lambda: anext(client.watch(VS, "1")),
        }
        error = await refusal(calls[verb]())
        assert error.cause is Cause.FORBIDDEN
        text = str(error)
        assert f"the verb '{verb}' on virtualservices.networking.istio.io in namespace ai" in text
        assert f"verbs: [{verb}]" in text
        assert len(api.asked(verb, "virtualservices")) == 1, "asking again does not help"
        assert not await client.may(verb, VS)
        assert await client.may(others[0], VS)


async def test_a_quota_or_webhook_is_not_taken_for_a_missing_role(api, client):
    api.fail("create", "virtualservices", 403, message="admission webhook istiod denied it")
    error = await refusal(client.create(VS, service()))
    assert error.cause is Cause.FORBIDDEN
    assert "not for want of a role" in str(error)


async def test_the_namespace_of_a_lease_is_missed_without_a_word_of_istio(client):
    nowhere = lease.ref("nowhere", "gpu-xds-istio")
    body = lease.taken(None, target=nowhere, me="a", rules=LeaseRules.of(15), wall=1.0)
    error = await refusal(client.create(nowhere, body))
    assert error.cause is Cause.NOT_FOUND
    assert "namespace nowhere is not there; create it, or mend istio.kubernetes.namespace" in str(
        error
    )
    assert "CRD" not in str(error)


async def test_a_missing_namespace_is_told_as_such(client):
    other = Ref(
        group=VS.group, version="v1", plural=VS.plural, kind=VS.kind, namespace="no", name="llm"
    )
    body = service()
    body["metadata"]["namespace"] = "no"
    error = await refusal(client.create(other, body))
    assert error.cause is Cause.NOT_FOUND
    assert "create the namespace" in str(error)


@pytest.mark.parametrize(
    ("status", "cause"),
    [(500, Cause.SERVER), (503, Cause.SERVER), (429, Cause.BUSY), (418, Cause.INVALID)],
)
async def test_other_refusals_have_a_cause(api, client, status, cause):
    api.fail("get", "virtualservices", status, headers={"Retry-After": "7"})
    error = await refusal(client.get(VS))
    assert error.cause is cause
    assert error.retry_after_s == 7


async def test_a_server_that_is_away_or_silent_is_unreachable(api, client):
    await api.put(service())
    api.fail("update", "virtualservices", 0)
    error = await refusal(client.replace(VS, service(version="1"), timeout_s=0.2))
    assert error.cause is Cause.UNREACHABLE
    await api.stop()
    assert (await refusal(client.get(VS))).cause is Cause.UNREACHABLE
    assert (await refusal(anext(client.watch(VS, "1")))).cause is Cause.UNREACHABLE
    await api.start()
    assert (await client.get(VS))["spec"]


async def test_a_dry_run_is_judged_and_not_stored(api, client):
    made = await client.create(VS, service(), dry_run=True)
    assert made["spec"]
    assert not api.store.objects
    assert (await refusal(client.create(VS, service("x"), dry_run=True))).cause is Cause.INVALID


async def test_a_watch_tells_changes_of_one_object_and_its_end(api, client):
    made = await client.create(VS, service())
    await client.create(VS, service(name="other"))
    watch = client.watch(VS, made["metadata"]["resourceVersion"])
    coming = asyncio.ensure_future(anext(watch))
    await api.put(service(1, name="other"))
    await api.put(service(42))
    kind, found = await asyncio.wait_for(coming, 30)
    assert (kind, found["spec"]["http"][0]["route"][0]["weight"]) == ("MODIFIED", 42)
    coming = asyncio.ensure_future(anext(watch))
    await api.store.forget_changes()
    await api.put(service(43))
    kind, found = await asyncio.wait_for(coming, 30)
    await watch.aclose()
    await api.store.forget_changes()
    error = await refusal(anext(client.watch(VS, "1")))
    assert error.cause is Cause.GONE


async def test_versions_are_the_servers_preferred_one_first(api, client):
    assert await client.versions("networking.istio.io") == ("v1", "v1beta1")
    assert await client.versions("other.io") == ()


async def test_a_token_that_ended_is_read_again_once(api, tmp_path):
    path = api.kubeconfig(tmp_path / "kubeconfig")
    async with KubernetesClient(SignIn(kubeconfig=str(path))) as client:
        await client.create(VS, service())
        del api.users["admin-token"]
        error = await refusal(client.get(VS))
        assert error.cause is Cause.UNAUTHORIZED
        assert "token or certificate" in str(error)
        api.users["new-token"] = "admin"
        api.kubeconfig(path, "new-token")
        assert (await client.get(VS))["spec"]
        assert client.server == api.url


async def test_a_token_that_ended_under_many_requests_is_nobodys_trouble(api, tmp_path):
    path = api.kubeconfig(tmp_path / "kubeconfig")
    async with KubernetesClient(SignIn(kubeconfig=str(path))) as client:
        await client.create(VS, service())
        for index in range(5):
            api.users = {f"token-{index}": "admin"}
            api.kubeconfig(path, f"token-{index}")
            found = await asyncio.gather(*[client.get(VS) for _ in range(20)])
            assert len(found) == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no kubeconfig"),
        ("{", "kubeconfig"),
        ("just text", "kubeconfig"),
        ("current-context: a\ncontexts: []\n", "kubeconfig"),
    ],
    ids=["missing", "no-yaml", "no-mapping", "no-such-context"],
)
async def test_a_kubeconfig_that_cannot_be_used_is_told_with_its_path(tmp_path, text, said):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AuthError, match=said) as caught:
        await signed_in(SignIn(kubeconfig=str(path)), environ={})
    assert str(path) in str(caught.value)


async def test_a_pod_signs_in_with_its_account(api, tmp_path):
    (tmp_path / "token").write_text("admin-token")
    (tmp_path / "namespace").write_text("gpu-xds\n")
    environ = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(api.port)}
    with pytest.raises(AuthError, match="certification file"):
        await signed_in(SignIn(), environ=environ, account=tmp_path)
    (tmp_path / "ca.crt").write_text("pem")
    made = await signed_in(SignIn(), environ=environ, account=tmp_path)
    assert made.host == api.url
    assert made.api_key["BearerToken"] == "Bearer admin-token"
    assert own_namespace(environ=environ, account=tmp_path) == "gpu-xds"
    assert own_namespace(environ={}, account=tmp_path) is None
