"""One adapter per kind of engine, and the choice between them by what a page looks like."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sidecar_agent.engine.adapters import llamacpp, named, sglang, tgi, triton, trtllm, vllm
from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts

__all__ = ["ADAPTERS", "AUTO", "Adapter", "Options", "Texts", "detect"]

AUTO: Final = "auto"
"""The kind that means: look at the page."""

ADAPTERS: Final[Mapping[str, Adapter]] = MappingProxyType(
    {
        adapter.kind: adapter
        for adapter in (
            vllm.ADAPTER,
            sglang.ADAPTER,
            named.LMDEPLOY,
            llamacpp.ADAPTER,
            trtllm.ADAPTER,
            triton.ADAPTER,
            tgi.ADAPTER,
            named.NIM,
            named.GENERIC,
        )
    }
)
"""By kind; the order is the order of detection (NIM has no prefix, so it comes last)."""


def detect(page: str) -> Adapter | None:
    """Return the adapter whose families the page holds; None when it holds no engine's."""
    for adapter in ADAPTERS.values():
        if any(page.startswith(mark) or f"\n{mark}" in page for mark in adapter.marks):
            return adapter
    return None
