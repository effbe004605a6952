"""vLLM, old and new names, data parallel.

Names: `kv_cache_usage_perc` since 0.9.2, `gpu_cache_usage_perc` until 0.11. Both hold a 0-1 ratio. Under
data parallelism one page carries one series per `engine`: queues add up, the KV ratio is the largest
(adding gives 1.98, seen in a capture).
"""

from __future__ import annotations

from typing import Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, mean, nothing
from sidecar_agent.engine.exposition import Page, parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake, added, label_number

_KV: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_WAITING: Final = "vllm:num_requests_waiting"
_WAITING_BY_REASON: Final = "vllm:num_requests_waiting_by_reason"
_RUNNING: Final = "vllm:num_requests_running"
_SWAPPED: Final = "vllm:num_requests_swapped"
_PREEMPTIONS: Final = "vllm:num_preemptions_total"
_PROMPT: Final = "vllm:prompt_tokens_total"
_GENERATION: Final = "vllm:generation_tokens_total"
_FINISHED: Final = "vllm:request_success_total"
_CONFIG: Final = "vllm:cache_config_info"
_SLEEP: Final = "vllm:engine_sleep_state"
_STARTED: Final = "process_start_time_seconds"

_ESSENTIAL: Final = (*_KV, _WAITING, _RUNNING)
NAMES: Final = frozenset(
    {*_ESSENTIAL, _WAITING_BY_REASON, _SWAPPED, _PREEMPTIONS, _PROMPT, _GENERATION, _FINISHED}
    | {_CONFIG, _SLEEP, _STARTED}
)


def read(texts: Texts, options: Options) -> EngineFacts:
    """Read one scrape of vLLM."""
    page = parse(texts.metrics or "", NAMES)
    intake = Intake(page)
    if not has_any(page, _ESSENTIAL):
        return nothing("vllm", intake)
    ratios = intake.ratios(page.first_of(_KV))
    if not ratios:
        intake.warnings.append("partial: no KV cache usage on the page")
    generation = intake.total(_GENERATION)
    asleep = _asleep(page)
    return EngineFacts(
        state=EngineState.SLEEPING if asleep else EngineState.UP,
        detail=asleep,
        kv_ratio=max(ratios, default=None),
        kv_ratio_mean=mean(ratios),
        # Swapped requests (V0 only) were preempted to host memory: queued, not running.
        waiting=added(intake.total(_WAITING, _WAITING_BY_REASON), intake.total(_SWAPPED)),
        running=intake.total(_RUNNING),
        preemptions_total=intake.total(_PREEMPTIONS),
        prompt_tokens_total=intake.total(_PROMPT),
        generation_tokens_total=generation,
        progress_total=generation,
        finished_total=intake.total(_FINISHED),
        slots=options.slots,
        kv_capacity_tokens=_capacity(page) or options.kv_capacity_tokens,
        reserved_ratio=_reserved(page),
        started_at_unix_s=intake.largest(_STARTED),
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


def _asleep(page: Page) -> str:
    """Say which engines sleep; a sleeping engine looks idle and must not take traffic."""
    awake = [one for one in page[_SLEEP] if one.labels.get("sleep_state") == "awake"]
    sleeping = [one.labels.get("engine", "0") for one in awake if one.value == 0]
    return f"asleep: engine {', '.join(sleeping)}" if sleeping else ""


def _capacity(page: Page) -> float | None:
    """Return the KV tokens of all engines.

    `kv_cache_size_tokens` is per engine. `num_gpu_blocks` is already the sum over engines and repeated
    under every `engine` label (128 for two engines of 64 blocks in a capture), so it is not added up.
    """
    sizes = [label_number(one, "kv_cache_size_tokens") for one in page[_CONFIG]]
    if total := added(*sizes):
        return total
    products = [
        blocks * size
        for one in page[_CONFIG]
        if (blocks := label_number(one, "num_gpu_blocks")) is not None
        and (size := label_number(one, "block_size")) is not None
    ]
    return max(products, default=None) or None


def _reserved(page: Page) -> float | None:
    ratios = [label_number(one, "gpu_memory_utilization") for one in page[_CONFIG]]
    return max((ratio for ratio in ratios if ratio is not None and 0 < ratio <= 1), default=None)


ADAPTER: Final = Adapter(kind="vllm", marks=("vllm:",), read=read)
