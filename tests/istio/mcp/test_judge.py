"""What istiod would refuse, misread or delete is held back, with the name of the object and the fix."""

from __future__ import annotations

import pytest

from tests.istio.mcp.objects import destination_rule, draft, service_entry, virtual_service
from xds_server.istio.mcp.catalog import Draft, title
from xds_server.istio.mcp.judge import BODY_MOST_BYTES, judge, stranded
from xds_server.istio.mcp.kinds import Kind


def test_good_objects_are_not_refused():
    good = [virtual_service(), service_entry("10.0.0.1", "::1"), destination_rule("v1", "v2")]
    assert judge(good) == []


def changed(base: Draft, change) -> Draft:
    change(base.message)
    return base


def vs(change, **more) -> Draft:
    return changed(virtual_service(**more), change)


def dr(change) -> Draft:
    return changed(destination_rule("v1"), change)


def se(change) -> Draft:
    return changed(service_entry("10.0.0.1"), change)


def second_route(message, *, first_has_match: bool = False):
    message.http.add().CopyFrom(message.http[0])
    message.http[1].name = "other"
    if first_has_match:
        message.http[0].match.add().uri.prefix = "/"


BAD = {
    "weights-zero": (vs(lambda m: [setattr(p, "weight", 0) for p in m.http[0].route]), "add up to 0"),
    "weights-90": (vs(lambda m: setattr(m.http[0].route[0], "weight", 40)), "add up to 90"),
    "weights-negative": (vs(lambda m: None, weight=-1), "none of them below 0"),
    "no-routes": (vs(lambda m: m.ClearField("http")), "no routes"),
    "neither": (vs(lambda m: m.http[0].ClearField("route")), "not both and not neither"),
    "both": (vs(lambda m: setattr(m.http[0].direct_response, "status", 200)), "not both"),
    "status": (
        vs(lambda m: (m.http[0].ClearField("route"), setattr(m.http[0].direct_response, "status", 99))),
        "status 99",
    ),
    "body": (
        vs(
            lambda m: (
                m.http[0].ClearField("route"),
                setattr(m.http[0].direct_response, "status", 200),
                setattr(m.http[0].direct_response.body, "string", "x" * (BODY_MOST_BYTES + 1)),
            )
        ),
        "shorten the static answer",
    ),
    "half-a-delegate": (vs(lambda m: m.ClearField("hosts")), "delegated to has neither"),
    "host": (vs(lambda m: m.hosts.__setitem__(0, "*")), "expected a full host name"),
    "destination": (
        vs(lambda m: setattr(m.http[0].route[0].destination, "host", "")), "expected a full host name"
    ),
    "same-twice": (vs(lambda m: None, to=("a.ai.svc", "a.ai.svc")), "is there twice"),
    "route-names": (
        vs(lambda m: (second_route(m, first_has_match=True), setattr(m.http[1], "name", "chat"))),
        "classes need names",
    ),
    "never-reached": (vs(second_route), "must be the last"),
    "subset-twice": (dr(lambda m: m.subsets.add().CopyFrom(m.subsets[0])), "is there twice"),
    "subset-name": (dr(lambda m: setattr(m.subsets[0], "name", "V 1")), "expected a DNS label"),
    "subset-labels": (dr(lambda m: m.subsets[0].labels.clear()), "has no labels"),
    "label": (dr(lambda m: m.subsets[0].labels.update({"a b": "c"})), "what Kubernetes takes"),
    "ejection": (
        dr(lambda m: setattr(m.traffic_policy.outlier_detection, "max_ejection_percent", 101)), "0-100"
    ),
    "no-host": (se(lambda m: m.ClearField("hosts")), "no hosts"),
    "ports": (se(lambda m: m.ports.add().CopyFrom(m.ports[0])), "numbers and names of their own"),
    "port": (se(lambda m: setattr(m.ports[0], "number", 0)), "expected 1-65535"),
    "address": (se(lambda m: setattr(m.endpoints[0], "address", "gpu-1")), "expected an IP address"),
    "endpoint-weight": (se(lambda m: setattr(m.endpoints[0], "weight", 0)), "would become 1"),
    "endpoint-twice": (se(lambda m: m.endpoints.add().CopyFrom(m.endpoints[0])), "is there twice"),
    "endpoint-label": (se(lambda m: m.endpoints[0].labels.update({"a": "b c"})), "what Kubernetes takes"),
    "name": (draft(Kind.VIRTUAL_SERVICE, "a/b", virtual_service().message), "expected a DNS subdomain"),
    "namespace": (
        Draft(kind=Kind.SERVICE_ENTRY, namespace="a/b", name="c", message=service_entry("::1").message),
        "expected a DNS label",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_istiod_would_not_take_is_refused_by_name(name):
    bad, expected = BAD[name]
    (refusal, *_) = judge([bad])
    assert refusal.key == bad.key
    assert any(expected in each.text for each in judge([bad]))


def test_a_route_to_a_subset_that_our_own_rule_has_not_is_refused():
    (refusal,) = judge(
        [
            virtual_service(subset="v3"),
            destination_rule("v1"),
            destination_rule("v3", host="b.ai.svc"),
        ]
    )
    assert title(refusal.key) == "VirtualService ai/chat"
    assert refusal.text.startswith("subset v3 of a.ai.svc")
    assert "give the tier's labels" in refusal.text


def test_a_subset_of_somebody_elses_rule_is_not_ours_to_judge():
    assert judge([virtual_service(subset="v3")]) == []


def test_two_objects_for_one_host_clash_and_the_second_is_refused():
    other = virtual_service(name="other")
    (refusal,) = judge([virtual_service(), other])
    assert refusal.key == other.key
    assert "host llm.ai.svc is that of VirtualService ai/chat too" in refusal.text


@pytest.mark.parametrize("make", [service_entry, destination_rule])
def test_two_hosts_of_our_own_clash_too(make):
    first, second = make("10.0.0.1"), make("10.0.0.1")
    moved = Draft(kind=second.kind, namespace="other", name=second.name, message=second.message)
    assert [each.key for each in judge([first, moved]) if "is that of" in each.text] == [moved.key]


def test_a_name_is_one_objects():
    twice = [virtual_service(), virtual_service(host="other.ai.svc")]
    assert ["its name is another object's" in each.text for each in judge(twice)] == [True]


@pytest.mark.parametrize(
    ("route", "missing", "said"),
    [
        (virtual_service(), service_entry("x"), "requests to a.ai.svc, and ServiceEntry ai/entry-a.ai.svc"),
        (virtual_service(100), service_entry("x"), "requests to a.ai.svc"),
        (virtual_service(0), service_entry("x"), None),
        (virtual_service(), service_entry("x", host="c.ai.svc"), None),
        (virtual_service(subset="v1"), destination_rule("v1"), "DestinationRule ai/rule-a.ai.svc is held back"),
        (virtual_service(), destination_rule("v1"), None),
    ],
    ids=["entry", "all-of-it", "weight-0", "other-host", "subset", "rule-without-subset"],
)  # fmt: skip
def test_routes_to_a_host_that_istiod_is_not_told_of_are_held_back(route, missing, said):
    assert stranded([missing, route], set()) == [], "the last good one is there"
    found = stranded([missing, route], {missing.key})
    assert [each.key for each in found] == ([] if said is None else [route.key])
    assert said is None or said in found[0].text
