"""Triton with the TensorRT-LLM backend (metrics on port 8002).

`kv_cache_block_type="fraction"` is not used/max in NVIDIA's own sample (0.4875 with 1 of 6239 blocks
used), so it is ignored; Triton's ORCA report does the same. `active` includes waiting requests, hence
`scheduled` is what runs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, mean, nothing
from sidecar_agent.engine.exposition import parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake

_REQUESTS: Final = "nv_trt_llm_request_metrics"
_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
_FINISHED: Final = "nv_inference_request_success"
NAMES: Final = frozenset({_REQUESTS, _BLOCKS, _FINISHED})


def read(texts: Texts, options: Options) -> EngineFacts:
    """Read one scrape of Triton."""
    page = parse(texts.metrics or "", NAMES)
    intake = Intake(page)
    if not has_any(page, (_REQUESTS, _BLOCKS)):
        return nothing("triton", intake)
    models: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in page[_BLOCKS]:
        key = one.labels.get("model", ""), one.labels.get("version", "")
        for value in intake.counts([one]):
            models[key][one.labels.get("kv_cache_block_type", "")] = value
    ratios = [
        min(1.0, blocks["used"] / blocks["max"])
        for blocks in models.values()
        if blocks.get("max") and "used" in blocks
    ]
    if not ratios:
        intake.warnings.append("partial: no KV cache blocks on the page")
    tokens = sum(
        b["max"] * b["tokens_per"] for b in models.values() if {"max", "tokens_per"} <= set(b)
    )

    def requests(kind: str) -> float | None:
        return intake.total(_REQUESTS, where=lambda one: one.labels.get("request_type") == kind)

    return EngineFacts(
        state=EngineState.UP,
        kv_ratio=max(ratios, default=None),
        kv_ratio_mean=mean(ratios),
        waiting=requests("waiting"),
        running=requests("scheduled"),
        finished_total=intake.total(_FINISHED),
        slots=requests("max") or options.slots,
        kv_capacity_tokens=tokens or options.kv_capacity_tokens,
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


ADAPTER: Final = Adapter(kind="triton", marks=("nv_trt_llm_",), read=read)
