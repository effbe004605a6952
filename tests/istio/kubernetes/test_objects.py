"""What is written: documents as Istio's CRDs have them, made of the plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fakes import kube_schema
from tests.fakes.mesh_config import mesh_config
from tests.fakes.mesh_wanted import wanted
from xds_server.core.plan import EndpointHealth
from xds_server.istio.kubernetes.advice import doubts
from xds_server.istio.kubernetes.objects import Owned, owned_objects
from xds_server.istio.kubernetes.route_patch import Patched
from xds_server.istio.mesh import mesh_of

CLASSES = [
    {"name": "interactive", "match": {"header": "x-tier", "value": "gold"}},
    {"name": "batch", "match": {"prefix": "/v1/batch"}, "when_critical": "reject"},
    {"name": "rest"},
]


def judged(found):
    """Return the documents by kind, after the schema of the CRDs took them."""
    kinds = kube_schema.kinds()
    by_kind = {}
    for each in found:
        assert each.fault == ""
        document = each.document()
        _, schema = kinds[each.ref.group, each.ref.version, each.ref.plural]
        assert kube_schema.unknown(document, schema) == []
        assert kube_schema.wrong(document, schema) == []
        by_kind.setdefault(each.ref.kind, []).append(document)
    return by_kind


def test_a_delegate_has_routes_and_neither_hosts_nor_gateways():
    found, _, _ = wanted()
    ((service,),) = judged(found).values()
    assert set(service["spec"]) == {"http"}
    (route,) = service["spec"]["http"]
    assert [each["weight"] for each in route["route"]] == [100, 0, 0]
    assert route["route"][0]["destination"] == {
        "host": "vllm-70b.ai.svc.cluster.local",
        "port": {"number": 8000},
    }
    assert service["metadata"] == {
        "name": "gpu-xds-chat",
        "namespace": "ai",
        "labels": {"app.kubernetes.io/managed-by": "gpu-xds", "gpu-xds/model": "chat"},
        "annotations": {"gpu-xds/owner": "gpu-xds.gpu-xds-istio"},
    }
    assert found[0].summary == "primary=100 fallback=0 static=0"


def test_without_delegation_it_has_hosts_and_gateways():
    found, _, _ = wanted(model={"delegate": False, "gateways": ["mesh", "ai/front"]})
    spec = judged(found)["VirtualService"][0]["spec"]
    assert spec["hosts"] == ["llm.ai.svc.cluster.local"]
    assert spec["gateways"] == ["mesh", "ai/front"]


def test_classes_have_routes_of_their_own_and_the_rest_comes_last():
    found, _, _ = wanted(classes=CLASSES)
    routes = judged(found)["VirtualService"][0]["spec"]["http"]
    assert [each["name"].rpartition("-")[2] for each in routes] == ["interactive", "batch", "rest"]
    assert routes[0]["match"] == [{"headers": {"x-tier": {"exact": "gold"}}}]
    assert routes[1]["match"] == [{"uri": {"prefix": "/v1/batch"}}]
    assert "match" not in routes[2]


def test_when_no_host_is_left_the_static_answer_is_given_by_the_mesh():
    document = mesh_config()
    tiers = dict(document["istio"]["models"][0]["tiers"])
    del tiers["static"]
    found, _, _ = wanted("a100-0", "a100-1", "l4-0", model={"tiers": tiers})
    (route,) = judged(found)["VirtualService"][0]["spec"]["http"]
    assert route["directResponse"]["status"] == 200
    assert json.loads(route["directResponse"]["body"]["string"])["choices"]
    assert found[0].summary == "answer"


def test_hosts_of_our_own_have_entries_without_drained_instances_before_what_goes_to_them():
    tiers = {"primary": {"endpoints": "instances", "subset": "big", "labels": {"size": "70b"}}}
    found, _, plan = wanted("a100-0", tiers=tiers)
    by_kind = judged(found)
    assert [each.ref.kind for each in found] == [
        "ServiceEntry",
        "DestinationRule",
        "VirtualService",
    ]
    (entry,) = by_kind["ServiceEntry"]
    assert entry["spec"]["resolution"] == "STATIC"
    (endpoint,) = entry["spec"]["endpoints"]
    assert endpoint == {
        "address": "127.0.0.1",
        "ports": {"http": 8002},
        "labels": {"size": "70b"},
        "weight": 100,
    }
    drained = [
        each.id
        for tier in plan.models[0].tiers
        for each in tier.instances
        if each.health is not EndpointHealth.HEALTHY
    ]
    assert drained == ["a100-0"]
    (rule,) = by_kind["DestinationRule"]
    assert rule["spec"]["subsets"] == [{"name": "big", "labels": {"size": "70b"}}]
    policy = rule["spec"]["trafficPolicy"]
    assert policy["outlierDetection"]["consecutive5xxErrors"] == 3
    assert policy["loadBalancer"]["localityLbSetting"] == {"enabled": False}


def test_an_object_knows_which_hosts_it_is_about():
    tiers = {"primary": {"endpoints": "instances", "subset": "big", "labels": {"size": "70b"}}}
    found, _, _ = wanted(tiers=tiers)
    entry, rule, service = (each.hosts for each in found)
    assert entry == rule == {"vllm-70b.ai.svc.cluster.local"}
    assert entry < service


def test_what_istio_would_misread_is_known_before_it_is_sent(monkeypatch):
    subset = {
        "primary": {"host": "one.ai.svc", "subset": "v1", "labels": {"a": "b"}},
        "fallback": {"host": "one.ai.svc", "subset": "v2"},
    }
    monkeypatch.setattr("xds_server.config.checks.check_istio", lambda _: [])
    found, _, _ = wanted(tiers=subset)
    faults = {each.ref.kind: each.fault for each in found}
    assert "subset v2 of one.ai.svc" in faults["VirtualService"]
    assert faults["DestinationRule"] == ""


def test_what_is_made_anew_is_what_it_is_without_a_memory():
    tiers = {"primary": {"endpoints": "instances"}}
    before, _, _ = wanted(tiers=tiers)
    fresh, config, plan = wanted("a100-0", tiers=tiers)
    given = (mesh_of(config.istio, config.topology), plan.models, config.topology, config.policy)
    more = {"version": "v1", "owner": "gpu-xds.gpu-xds-istio"}
    again = owned_objects(*given, **more, before=before)
    assert again == fresh
    entry, rule, _ = again
    assert entry.spec != before[0].spec
    assert rule.spec is before[1].spec, "it is not made again"
    assert [each.fault for each in again] == ["", "", ""]
    bad = replace(before[1], fault="it was judged before")
    assert owned_objects(*given, **more, before=[bad])[1].fault == "", "a fault is judged anew"


def test_an_entry_whose_instances_are_all_out_stays_and_has_no_endpoint():
    tiers = {"primary": {"endpoints": "instances"}}
    found, _, _ = wanted("a100-0", "a100-1", tiers=tiers)
    by_kind = judged(found)
    (entry,) = by_kind["ServiceEntry"]
    assert entry["spec"]["hosts"] == ["vllm-70b.ai.svc.cluster.local"]
    assert "endpoints" not in entry["spec"]
    assert found[0].summary == "vllm-70b.ai.svc.cluster.local: 0 endpoints"
    service = by_kind["VirtualService"][0]
    assert service["spec"]["http"][0]["route"][0]["weight"] == 0


@pytest.mark.parametrize("classes", [None, CLASSES], ids=["plain", "classes"])
def test_a_patched_model_has_one_route_and_no_objects(classes):
    patch = [{"model": "chat", "namespace": "web", "virtual_service": "llm", "route": "r"}]
    (found,), _, _ = wanted(classes=classes, kubernetes={"patch": patch})
    assert isinstance(found, Patched)
    assert not isinstance(found, Owned)
    assert str(found.ref) == "VirtualService web/llm"
    assert found.summary == "primary=100 fallback=0 static=0"


# What around our objects makes them useless.


LABELS = {"app.kubernetes.io/managed-by": "gpu-xds"}


def root(*, delegate=None, hosts=("llm",), name="llm", namespace="ai", gateways=None, labels=None):
    route = {"delegate": delegate} if delegate else {"route": []}
    spec = {"hosts": list(hosts), "http": [route]}
    if gateways:
        spec["gateways"] = gateways
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {
        "metadata": metadata | {"annotations": {"gpu-xds/owner": "gpu-xds.other"}},
        "spec": spec,
    }


def rule(host, *subsets):
    spec = {"host": host, "subsets": [{"name": each} for each in subsets]}
    return {"metadata": {"name": "r", "namespace": "ai"}, "spec": spec}


DELEGATE = {"name": "gpu-xds-chat"}


@pytest.mark.parametrize(
    ("sections", "services", "rules", "said"),
    [
        ({}, [root(delegate=DELEGATE)], [], []),
        ({}, [root(delegate={**DELEGATE, "namespace": "ai"})], [], []),
        ({}, [root(delegate={**DELEGATE, "namespace": "x"})], [], ["delegates to ai/gpu-xds-chat"]),
        ({}, [], [], ["delegates to ai/gpu-xds-chat"]),
        (
            {"model": {"delegate": False}},
            [root(name="theirs")],
            [],
            ["VirtualService ai/theirs is for llm.ai.svc.cluster.local too, on mesh"],
        ),
        (
            {"model": {"delegate": False}},
            [root(name="gpu-xds-chat-old", labels=LABELS)],
            [],
            ["it was made by gpu-xds with lease gpu-xds.other"],
        ),
        ({"model": {"delegate": False}}, [root(name="gpu-xds-chat", labels=LABELS)], [], []),
        ({"model": {"delegate": False}}, [root(gateways=["ai/front"])], [], []),
        ({"model": {"delegate": False}}, [root(hosts=["other"])], [], []),
        (
            {"tiers": {"fallback": {"subset": "v1"}}},
            [root(delegate=DELEGATE)],
            [rule("vllm-8b", "v2")],
            ["has subset v1 of vllm-8b.ai.svc.cluster.local"],
        ),
        (
            {"tiers": {"fallback": {"subset": "v1"}}},
            [root(delegate=DELEGATE)],
            [rule("vllm-8b", "v1")],
            [],
        ),
    ],
    ids=[
        *("delegated", "delegated-with-namespace", "delegated-elsewhere", "no-root"),
        *(
            "clash",
            "clash-with-one-of-ours",
            "ours",
            "other-gateway",
            "other-host",
            "no-subset",
            "subset",
        ),
    ],
)
def test_what_makes_our_objects_useless_is_told_with_its_fix(sections, services, rules, said):
    _, config, _ = wanted(**sections)
    found = list(doubts(mesh_of(config.istio, config.topology).models, services, rules))
    assert len(found) == len(said)
    for text, part in zip(found, said, strict=True):
        assert part in text
