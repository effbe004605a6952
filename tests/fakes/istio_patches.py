"""What istiod does with the CLUSTER patches of an EnvoyFilter, as far as ours use it.

A real istiod says the same: tests/istio/real compares.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def patched(
    envoy_filter: Mapping[str, Any], clusters: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return istiod's clusters after the filter: merged by name, then the added ones."""
    patches = envoy_filter["spec"]["configPatches"]
    assert {each["applyTo"] for each in patches} == {"CLUSTER"}
    assert {each["match"]["context"] for each in patches} == {"SIDECAR_OUTBOUND"}
    made = [copy.deepcopy(dict(each)) for each in clusters]
    for cluster in made:
        merges = [
            each["patch"]["value"]
            for each in patches
            if each["patch"]["operation"] == "MERGE"
            and each["match"]["cluster"] == {"name": cluster["name"]}
        ]
        for value in merges:
            _merge(cluster, value)
    return made + [
        copy.deepcopy(each["patch"]["value"])
        for each in patches
        if each["patch"]["operation"] == "ADD"
    ]


def _merge(into: dict[str, Any], value: Mapping[str, Any]) -> None:
    for key, each in value.items():
        if isinstance(each, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], each)
        else:
            into[key] = copy.deepcopy(each)
