"""`istio.kubernetes` as it may be written."""

from __future__ import annotations

import json

import pytest

from tests.fakes.mesh_config import mesh_config
from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError

PATCH = {"model": "chat", "namespace": "ai", "virtual_service": "llm", "route": "chat"}


def load(**kubernetes):
    return load_text(json.dumps(mesh_config(kubernetes=kubernetes)))


def test_an_empty_section_is_the_pods_account_and_the_lease_of_the_default_name():
    istio = load().istio
    assert istio is not None
    section = istio.kubernetes
    assert section is not None
    assert (section.kubeconfig, section.lease, section.lease_s, section.write_gap_s) == (
        *(None, "gpu-xds-istio", 15.0, 1.0),
    )


@pytest.mark.parametrize(
    ("kubernetes", "said"),
    [
        (
            {"write_gap_s": 0.5},
            "istio.kubernetes.write_gap_s: 0.5: expected a number of at least 1",
        ),
        ({"lease_s": 0}, "istio.kubernetes.lease_s: 0: expected a number of at least 1"),
        ({"lease": "No"}, "istio.kubernetes.lease"),
        ({"namespace": "a.b"}, "istio.kubernetes.namespace"),
        ({"token": "x"}, "istio.kubernetes.token"),
        (
            {"patch": [{**PATCH, "model": "other"}]},
            'istio.kubernetes.patch[0].model: "other": expected one of istio.models',
        ),
        ({"patch": [{"model": "chat"}]}, "istio.kubernetes.patch[0].route: (missing)"),
        (
            {"patch": [PATCH, {**PATCH, "route": "x"}]},
            "istio.kubernetes.patch[1].model",
        ),
        ({"patch": [PATCH, PATCH]}, "istio.kubernetes.patch[1].route"),
    ],
    ids=[
        "fast",
        "no-lease-time",
        "name",
        "namespace",
        "unknown",
        "model",
        "short",
        "twice",
        "route",
    ],
)
def test_what_cannot_be_is_told_with_its_path(kubernetes, said):
    with pytest.raises(ConfigError) as caught:
        load(**kubernetes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tier", "path"),
    [
        ({"subset": "v1", "labels": {"a": "b"}}, "labels"),
        ({"endpoints": "instances"}, "endpoints"),
    ],
)
def test_what_only_an_object_of_ours_could_have_is_doubted_where_weights_are_patched(tier, path):
    document = mesh_config(kubernetes={"patch": [PATCH]}, tiers={"primary": tier})
    doubts = {each.path for each in load_text(json.dumps(document)).doubts}
    assert f"istio.models[0].tiers.primary.{path}" in doubts
    document["istio"]["kubernetes"] = {}
    doubts = {each.path for each in load_text(json.dumps(document)).doubts}
    assert f"istio.models[0].tiers.primary.{path}" not in doubts
