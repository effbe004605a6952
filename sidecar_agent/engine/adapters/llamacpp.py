"""llama.cpp's server: /metrics for the queue, /slots for the KV cache.

The page has had no KV usage since ggml-org/llama.cpp#13660. A slot keeps its last prompt after the
request ended, so only slots that are processing count. `tokens_predicted_total` moves when a request
ends; `n_decode_total` moves with every step and feeds the watchdog. The server's
`Process-Start-Time-Unix` header counts from boot and is not used.

The server gives every open connection one of its few threads (8 by default), and requests starve
unseen when they run out. So the agent's connection is not kept between scrapes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, nothing
from sidecar_agent.engine.exposition import parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake

_WAITING: Final = "llamacpp:requests_deferred"
_RUNNING: Final = "llamacpp:requests_processing"
_PROMPT: Final = "llamacpp:prompt_tokens_total"
_GENERATION: Final = "llamacpp:tokens_predicted_total"
_PROGRESS: Final = "llamacpp:n_decode_total"
_ESSENTIAL: Final = (_WAITING, _RUNNING)
NAMES: Final = frozenset({*_ESSENTIAL, _PROMPT, _GENERATION, _PROGRESS})


def read(texts: Texts, options: Options) -> EngineFacts:
    """Read one scrape of llama.cpp; either page alone gives a partial answer."""
    page = parse(texts.metrics or "", NAMES)
    intake = Intake(page)
    slots = _slots(texts.slots, intake)
    if not has_any(page, _ESSENTIAL) and slots is None:
        return nothing("llamacpp", intake)
    busy = [slot for slot in slots or [] if slot["is_processing"]]
    capacity = sum(slot["n_ctx"] for slot in slots or [])
    used = [slot["n_prompt_tokens"] for slot in busy]
    ratio = min(1.0, sum(used) / capacity) if capacity and None not in used else None
    if ratio is None:
        intake.warnings.append("partial: no usable /slots, so no KV usage (is --slots on?)")
    if not has_any(page, _ESSENTIAL):
        intake.warnings.append("partial: no /metrics, so no queue (is --metrics on?)")
    running = intake.total(_RUNNING)
    return EngineFacts(
        state=EngineState.UP,
        kv_ratio=ratio,
        kv_ratio_mean=ratio,
        waiting=intake.total(_WAITING),
        running=float(len(busy)) if running is None and slots is not None else running,
        prompt_tokens_total=intake.total(_PROMPT),
        generation_tokens_total=intake.total(_GENERATION),
        progress_total=intake.total(_PROGRESS),
        slots=float(len(slots)) if slots else options.slots,
        kv_capacity_tokens=float(capacity) if capacity else options.kv_capacity_tokens,
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


def _slots(text: str | None, intake: Intake) -> list[dict[str, Any]] | None:
    """Read /slots strictly: a page that is not a list of slots is no page."""
    if text is None:
        return None
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not listed:
        intake.rejected += 1
        intake.warnings.append("/slots is not a list of slots")
        return None
    slots = []
    for slot in listed:
        processing = slot.get("is_processing") if isinstance(slot, dict) else None
        size = _whole(slot.get("n_ctx")) if isinstance(slot, dict) else None
        if not isinstance(processing, bool) or size is None:
            intake.rejected += 1
            intake.warnings.append("/slots has a slot without is_processing or n_ctx")
            return None
        tokens = _whole(slot.get("n_prompt_tokens"))
        slots.append({"is_processing": processing, "n_ctx": size, "n_prompt_tokens": tokens})
    return slots


def _whole(value: Any) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40
    return value if ok else None


ADAPTER: Final = Adapter(
    kind="llamacpp", slots_path="/slots", keep_alive=False, marks=("llamacpp:",), read=read
)
