"""TensorRT-LLM's own server (`trtllm-serve`)."""

from __future__ import annotations

from typing import Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, mean, nothing
from sidecar_agent.engine.exposition import parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake

_KV: Final = "trtllm_kv_cache_utilization"
_WAITING: Final = "trtllm_num_requests_waiting"
_RUNNING: Final = "trtllm_num_requests_running"
_PROMPT: Final = "trtllm_prompt_tokens_total"
_GENERATION: Final = "trtllm_generation_tokens_total"
_FINISHED: Final = "trtllm_request_success_total"
_MAX: Final = "trtllm_kv_cache_max_blocks"
_PER_BLOCK: Final = "trtllm_kv_cache_tokens_per_block"
_STARTED: Final = "process_start_time_seconds"
_ESSENTIAL: Final = (_KV, _WAITING, _RUNNING)
NAMES: Final = frozenset({*_ESSENTIAL, _PROMPT, _GENERATION, _FINISHED, _MAX, _PER_BLOCK, _STARTED})


def read(texts: Texts, options: Options) -> EngineFacts:
    """Read one scrape of trtllm-serve."""
    page = parse(texts.metrics or "", NAMES)
    intake = Intake(page)
    if not has_any(page, _ESSENTIAL):
        return nothing("trtllm", intake)
    ratios = intake.ratios(page[_KV])
    if not ratios:
        intake.warnings.append("partial: no KV cache utilization on the page")
    blocks, per_block = intake.total(_MAX), intake.largest(_PER_BLOCK)
    known = blocks * per_block if blocks and per_block else None
    return EngineFacts(
        state=EngineState.UP,
        kv_ratio=max(ratios, default=None),
        kv_ratio_mean=mean(ratios),
        waiting=intake.total(_WAITING),
        running=intake.total(_RUNNING),
        prompt_tokens_total=intake.total(_PROMPT),
        generation_tokens_total=intake.total(_GENERATION),
        finished_total=intake.total(_FINISHED),
        slots=options.slots,
        kv_capacity_tokens=known or options.kv_capacity_tokens,
        started_at_unix_s=intake.largest(_STARTED),
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


ADAPTER: Final = Adapter(kind="trtllm", marks=("trtllm_",), read=read)
