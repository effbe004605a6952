"""SGLang (needs `--enable-metrics`).

Schedulers of every tensor- and pipeline-parallel rank may report the same queue, and priority
scheduling adds one series per priority to the total (`priority=""`): adding all series up counts the
same requests many times. Counters that move only when a request ends are replaced by
`realtime_tokens_total`. Ignored on purpose: `num_retracted_reqs` (a gauge repeated per pid, dead ones
included), `utilization` (-1 in prefill) and `fwd_occupancy` (NaN at start).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, mean, nothing
from sidecar_agent.engine.exposition import Series, parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake, added

_KV: Final = "sglang:token_usage"
_WAITING: Final = "sglang:num_queue_reqs"
_RUNNING: Final = "sglang:num_running_reqs"
_DISAGGREGATED: Final = (
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)
"""Queues of prefill/decode disaggregation; zero in a unified engine."""
_RETRACTED: Final = "sglang:num_retracted_requests_total"
_LIVE: Final = "sglang:realtime_tokens_total"
_PROMPT: Final = "sglang:prompt_tokens_total"
_GENERATION: Final = "sglang:generation_tokens_total"
_FINISHED: Final = "sglang:num_requests_total"
_CAPACITY: Final = "sglang:max_total_num_tokens"
_USED: Final = "sglang:num_used_tokens"
_STARTED: Final = "process_start_time_seconds"
_ESSENTIAL: Final = (_KV, _WAITING, _RUNNING)
NAMES: Final = frozenset(
    {*_ESSENTIAL, *_DISAGGREGATED, _RETRACTED, _LIVE, _PROMPT, _GENERATION, _FINISHED}
    | {_CAPACITY, _USED, _STARTED}
)
_RANKS: Final = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")


def read(texts: Texts, options: Options) -> EngineFacts:
    """Read one scrape of SGLang."""
    page = parse(texts.metrics or "", NAMES)
    intake = Intake(page)
    if not has_any(page, _ESSENTIAL):
        return nothing("sglang", intake)
    capacity = _total(intake, _CAPACITY)
    ratios = intake.ratios(_totals(page[_KV]))
    if not ratios and capacity and (used := _total(intake, _USED)) is not None:
        ratios = [min(1.0, used / capacity)]
    if not ratios:
        intake.warnings.append("partial: no token usage on the page")
    is_live = bool(page[_LIVE])
    rejected = intake.rejected
    decode = _total(intake, _LIVE, where=_decodes)
    prefill = _total(intake, _LIVE, where=lambda one: not _decodes(one))
    # One of the two alone is less than both were: that is what a restart looks like.
    progress = added(decode, prefill) if intake.rejected == rejected else None
    return EngineFacts(
        state=EngineState.UP,
        kv_ratio=max(ratios, default=None),
        kv_ratio_mean=mean(ratios),
        waiting=added(
            _total(intake, _WAITING),
            *(_total(intake, name) for name in _DISAGGREGATED if page[_WAITING]),
        ),
        running=_total(intake, _RUNNING),
        preemptions_total=_total(intake, _RETRACTED),
        prompt_tokens_total=prefill if is_live else intake.total(_PROMPT),
        generation_tokens_total=decode if is_live else intake.total(_GENERATION),
        progress_total=progress,
        finished_total=intake.total(_FINISHED),
        slots=options.slots,
        kv_capacity_tokens=capacity or options.kv_capacity_tokens,
        started_at_unix_s=intake.largest(_STARTED),
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


def _totals(series: Iterable[Series]) -> list[Series]:
    """Keep the totals where a metric is also split by priority; all of it where it has no total."""
    everything = list(series)
    totals = [one for one in everything if not one.labels.get("priority")]
    return totals or everything


def _decodes(series: Series) -> bool:
    return series.labels.get("mode") == "decode"


def _total(
    intake: Intake, name: str, *, where: Callable[[Series], bool] | None = None
) -> float | None:
    """Add up over data-parallel ranks and label sets, counting the other ranks of a group once.

    As `Intake.total`: a sum that lacks a part is missing.
    """
    groups: dict[tuple[tuple[str, str], ...], float] = {}
    is_whole = name not in intake.page.incomplete
    for one in _totals(each for each in intake.page[name] if where is None or where(each)):
        usable = intake.counts([one])
        is_whole = is_whole and bool(usable)
        for value in usable:
            key = tuple(sorted(pair for pair in one.labels.items() if pair[0] not in _RANKS))
            groups[key] = max(value, groups.get(key, 0.0))
    return sum(groups.values()) if groups and is_whole else None


ADAPTER: Final = Adapter(kind="sglang", marks=("sglang:",), read=read)
