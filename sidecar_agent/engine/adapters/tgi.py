"""Hugging Face TGI: no KV usage; tokens in the batch over MAX_BATCH_TOTAL_TOKENS stand in for it."""

from __future__ import annotations

from typing import Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, nothing
from sidecar_agent.engine.exposition import parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake

_WAITING: Final = "tgi_queue_size"
_RUNNING: Final = "tgi_batch_current_size"
_TOKENS: Final = "tgi_batch_current_max_tokens"
_PROMPT: Final = "tgi_request_input_length_sum"
_GENERATION: Final = "tgi_request_generated_tokens_sum"
_FINISHED: Final = "tgi_request_success"
_ESSENTIAL: Final = (_WAITING, _RUNNING)
NAMES: Final = frozenset({*_ESSENTIAL, _TOKENS, _PROMPT, _GENERATION, _FINISHED})


def read(texts: Texts, options: Options) -> EngineFacts:
    """Read one scrape of TGI."""
    page = parse(texts.metrics or "", NAMES)
    intake = Intake(page)
    if not has_any(page, _ESSENTIAL):
        return nothing("tgi", intake)
    tokens, capacity = intake.total(_TOKENS), options.kv_capacity_tokens
    ratio = min(1.0, tokens / capacity) if tokens is not None and capacity else None
    if ratio is None:
        intake.warnings.append("partial: TGI has no KV usage; set kv_capacity_tokens to derive it")
    return EngineFacts(
        state=EngineState.UP,
        kv_ratio=ratio,
        kv_ratio_mean=ratio,
        waiting=intake.total(_WAITING),
        running=intake.total(_RUNNING),
        prompt_tokens_total=intake.total(_PROMPT),
        generation_tokens_total=intake.total(_GENERATION),
        finished_total=intake.total(_FINISHED),
        slots=options.slots,
        kv_capacity_tokens=capacity,
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


ADAPTER: Final = Adapter(kind="tgi", marks=("tgi_",), read=read)
