"""What has to be done to an object; what is left alone."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import json_patch
from xds_server.core.model import ModelName, TierName
from xds_server.istio.kubernetes.change import Change, Refusal, Unchanged, decide
from xds_server.istio.kubernetes.objects import Owned, ref_of
from xds_server.istio.kubernetes.route_patch import Patched
from xds_server.istio.mesh import MeshModel, MeshTier
from xds_server.istio.weights import Action, ModelWeights, RouteWeights

REF = ref_of("virtualservices", "ai", "llm", version="v1")
A = MeshTier(name=TierName("primary"), host="a.ai.svc.cluster.local", subset="v1", port=8000)
MESH = MeshModel(model=ModelName("chat"), host="llm.ai.svc.cluster.local", namespace="ai", name="x")
B = MeshTier(name=TierName("fallback"), host="b.ai.svc.cluster.local")


def spec(host="a", weight=100):
    return {
        "http": [{"name": "chat", "route": [{"destination": {"host": host}, "weight": weight}]}]
    }


def owned(**changes) -> Owned:
    values = {
        "ref": REF,
        "model": ModelName("chat"),
        "spec": spec(),
        "owner": "gpu-xds.x",
        "summary": "",
    }
    return Owned(**(values | changes))


def live(wanted=None, **metadata):
    document = copy.deepcopy((wanted or owned()).document())
    document["metadata"] |= {"resourceVersion": "7", "uid": "u", **metadata}
    return document


def test_an_object_is_made_left_or_replaced_with_its_version_and_others_metadata():
    made = decide(owned(), None)
    assert isinstance(made, Change)
    assert made.verb == "create"
    assert "resourceVersion" not in made.body["metadata"]
    assert isinstance(decide(owned(), live()), Unchanged)
    there = live(finalizers=["x"], managedFields=[{"manager": "y"}])
    there["metadata"]["labels"]["team"] = "ml"
    found = decide(owned(spec=spec(weight=90)), there)
    assert isinstance(found, Change)
    assert (found.verb, found.adds) == ("update", False)
    metadata = found.body["metadata"]
    assert metadata["resourceVersion"] == "7"
    assert metadata["finalizers"] == ["x"]
    assert metadata["labels"]["team"] == "ml"
    assert "managedFields" not in metadata


def test_a_new_destination_waits_for_what_it_needs():
    found = decide(owned(spec=spec("other")), live())
    assert isinstance(found, Change)
    assert found.adds


@pytest.mark.parametrize(
    ("labels", "annotations", "reason", "said"),
    [
        ({}, {}, "not_ours", "kubectl label -n ai virtualservices.networking.istio.io llm"),
        ({"app.kubernetes.io/managed-by": "flagger"}, {}, "not_ours", "it is flagger's"),
        (
            {"app.kubernetes.io/managed-by": "gpu-xds"},
            {"gpu-xds/owner": "other.y"},
            "other_owner",
            "kubectl annotate --overwrite -n ai virtualservices.networking.istio.io llm gpu-xds/owner=gpu-xds.x",
        ),
    ],
    ids=["nobody's", "somebody's", "another-installation's"],
)
def test_what_is_not_ours_is_left_alone(labels, annotations, reason, said):
    there = live(labels=labels, annotations=annotations)
    found = decide(owned(spec=spec(weight=1)), there)
    assert isinstance(found, Refusal)
    assert found.reason == reason
    assert said in found.text


def test_what_istio_would_misread_is_held_back():
    found = decide(owned(fault="no routes: a model needs one at least"), None)
    assert isinstance(found, Refusal)
    assert found.reason == "fault"
    assert found.text == (
        "VirtualService ai/llm is held back: no routes: a model needs one at least"
    )


def test_an_object_that_is_handed_over_by_its_label_is_taken():
    there = live(labels={"app.kubernetes.io/managed-by": "gpu-xds"}, annotations={})
    found = decide(owned(), there)
    assert isinstance(found, Change), "its marks are missing"
    assert found.body["metadata"]["annotations"]["gpu-xds/owner"] == "gpu-xds.x"


def test_the_label_of_a_model_is_taken_off_what_several_share_by_now():
    there = live()
    there["metadata"]["labels"]["team"] = "ml"
    found = decide(owned(model=""), there)
    assert isinstance(found, Change)
    labels = found.body["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "gpu-xds", "team": "ml"}
    assert isinstance(decide(owned(model=""), found.body), Unchanged)


# Weights in somebody else's VirtualService.


def patched(*weights, action=Action.FORWARD, route="chat") -> Patched:
    pairs = tuple(zip((A, B), weights, strict=True)) if weights else ()
    return Patched(
        ref=REF,
        model=ModelName("chat"),
        route=route,
        weights=ModelWeights(
            model=MESH, routes=(RouteWeights(of=None, action=action, weights=pairs),)
        ),
    )


def admins(a=100, b=0, *, extra=(), name="chat"):
    """Return an admin's VirtualService: our route is the second one, and b is named in short."""
    return {
        "metadata": {"name": "llm", "namespace": "ai", "resourceVersion": "7"},
        "spec": {
            "hosts": ["llm"],
            "http": [
                {"name": "health", "route": [{"destination": {"host": "h"}}]},
                {
                    "name": name,
                    "timeout": "0s",
                    "route": [
                        {"destination": {"host": "b"}, "weight": b},
                        {"destination": {"host": A.host, "subset": "v1"}, "weight": a},
                        *extra,
                    ],
                },
            ],
        },
    }


def numbers(document):
    return [each.get("weight") for each in document["spec"]["http"][1]["route"]]


@given(a=st.integers(0, 100), was=st.integers(0, 100))
def test_the_patch_moves_the_weights_of_its_route_and_nothing_else(a, was):
    there = admins(was, 100 - was)
    found = decide(patched(a, 100 - a), there)
    if a == was:
        assert isinstance(found, Unchanged)
        return
    assert isinstance(found, Change)
    after = json_patch.apply(there, found.body)
    assert numbers(after) == [100 - a, a]
    after["spec"]["http"][1]["route"] = there["spec"]["http"][1]["route"]
    assert after == there


def test_weights_that_are_not_written_count_as_zero():
    there = admins()
    del there["spec"]["http"][1]["route"][0]["weight"]
    assert isinstance(decide(patched(100, 0), there), Unchanged)
    found = decide(patched(60, 40), there)
    assert isinstance(found, Change)
    assert numbers(json_patch.apply(there, found.body)) == [40, 60]


@pytest.mark.parametrize("edit", ["renamed", "inserted", "swapped", "newer"])
def test_an_edit_between_look_and_patch_makes_the_patch_fail(edit):
    there = admins()
    found = decide(patched(60, 40), there)
    assert isinstance(found, Change)
    routes = there["spec"]["http"]
    if edit == "renamed":
        routes[1]["name"] = "other"
    elif edit == "inserted":
        routes.insert(0, {"name": "new"})
    elif edit == "newer":
        there["metadata"]["resourceVersion"] = "8"
    else:
        routes[1]["route"].reverse()
    with pytest.raises(json_patch.PatchError, match="test"):
        json_patch.apply(there, found.body)


@pytest.mark.parametrize(
    ("wanted", "there", "reason", "said"),
    [
        (patched(60, 40), None, "no_object", "There is no VirtualService ai/llm"),
        (patched(60, 40), {"metadata": {}, "spec": {}}, "route", "its names: none"),
        (patched(60, 40, route="x"), admins(), "route", "its names: 'health', 'chat'"),
        (
            patched(60, 40),
            admins(extra=[{"destination": {"host": "c", "subset": "v9"}}]),
            "route",
            "goes to c subset v9, which is no tier of chat",
        ),
        (patched(60, 40), admins(name="health"), "route", "has several HTTP routes"),
        (patched(action=Action.ANSWER), admins(), "route", "weights cannot say so"),
    ],
    ids=["no-object", "no-route", "other-route", "foreign-host", "twice", "no-tier-left"],
)
def test_a_virtual_service_that_is_not_as_configured_is_left_alone(wanted, there, reason, said):
    if wanted.route == "chat" and there and said.startswith("has several"):
        wanted = patched(60, 40, route="health")
    found = decide(wanted, there)
    assert isinstance(found, Refusal)
    assert found.reason == reason
    assert said in found.text


def test_a_tier_without_a_destination_is_missed_once_it_shall_get_requests():
    there = admins()
    del there["spec"]["http"][1]["route"][0]
    assert isinstance(decide(patched(100, 0), there), Unchanged)
    found = decide(patched(60, 40), there)
    assert isinstance(found, Refusal)
    assert (
        "has no destination b.ai.svc.cluster.local, which shall get requests of chat" in found.text
    )
