"""Configurations of a chat model with three tiers that is a host of a mesh, for tests of the ways to Istio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.xds_process import ROOT

NAMESPACE = "ai"
HOSTS = {
    "primary": "vllm-70b.ai.svc.cluster.local",
    "fallback": "vllm-8b.ai.svc.cluster.local",
    "static": "busy.ai.svc.cluster.local",
}


def mesh_config(**sections: Any) -> dict[str, Any]:
    """Return the design's configuration with an `istio` section.

    Args:
        sections: Subsections of `istio`; `model` adds to the one model of it, `tiers` to its tiers.
    """
    document: dict[str, Any] = yaml.safe_load((ROOT / "tests/config/design.yaml").read_text())
    more: Mapping[str, Any] = sections.pop("model", {})
    tiers: Mapping[str, Mapping[str, Any]] = sections.pop("tiers", {})
    model = {
        "model": "chat",
        "host": "llm.ai.svc.cluster.local",
        "namespace": NAMESPACE,
        "delegate": True,
        "tiers": {
            name: {"host": host, "port": 8000, **tiers.get(name, {})}
            for name, host in HOSTS.items()
        },
        **more,
    }
    return {**document, "istio": {"models": [model], **sections}}


def write_config(path: Path, document: Mapping[str, Any]) -> Path:
    """Write a configuration file."""
    path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    return path
