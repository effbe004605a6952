"""Engines whose page is a plain list of names: NIM, LMDeploy and whatever the operator maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar_agent.engine.adapters.adapter import Adapter, Options, Texts, has_any, mean, nothing
from sidecar_agent.engine.exposition import parse
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import COUNTS, Intake, added

FACTS: Final = ("kv_ratio", *COUNTS)
"""Facts that a name can be given for."""

_STARTED: Final = "process_start_time_seconds"
_NIM: Final = {
    "kv_ratio": "gpu_cache_usage_perc",
    "waiting": "num_requests_waiting",
    "running": "num_requests_running",
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total",
    "finished_total": "request_finish_total",
    "slots": "num_request_max",
}
_LMDEPLOY: Final = {
    "kv_ratio": "lmdeploy:gpu_cache_usage_perc",
    "waiting": "lmdeploy:num_requests_waiting",
    "running": "lmdeploy:num_requests_running",
    "prompt_tokens_total": "lmdeploy:prompt_tokens_total",
    "generation_tokens_total": "lmdeploy:generation_tokens_total",
}
_LMDEPLOY_API_QUEUE: Final = "lmdeploy:num_api_requests_waiting"
"""LMDeploy queues twice: for a request handle, then for the engine."""


def read_named(
    texts: Texts,
    options: Options,
    *,
    kind: str,
    names: Mapping[str, str],
    also_waiting: tuple[str, ...] = (),
) -> EngineFacts:
    """Read a page by a map of fact to exact sample name."""
    wanted = {*names.values(), *also_waiting, _STARTED}
    page = parse(texts.metrics or "", wanted)
    intake = Intake(page)
    if not has_any(page, tuple(names.values())):
        return nothing(kind, intake)
    ratios = intake.ratios(page[names["kv_ratio"]]) if "kv_ratio" in names else []
    if not ratios:
        intake.warnings.append("partial: no KV cache usage on the page")

    def total(fact: str) -> float | None:
        return intake.total(names[fact]) if fact in names else None

    return EngineFacts(
        state=EngineState.UP,
        kv_ratio=max(ratios, default=None),
        kv_ratio_mean=mean(ratios),
        waiting=added(total("waiting"), *(intake.total(name) for name in also_waiting)),
        running=total("running"),
        preemptions_total=total("preemptions_total"),
        prompt_tokens_total=total("prompt_tokens_total"),
        generation_tokens_total=total("generation_tokens_total"),
        progress_total=total("progress_total"),
        finished_total=total("finished_total"),
        slots=total("slots") or options.slots,
        kv_capacity_tokens=total("kv_capacity_tokens") or options.kv_capacity_tokens,
        started_at_unix_s=intake.largest(_STARTED),
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


def _read_nim(texts: Texts, options: Options) -> EngineFacts:
    return read_named(texts, options, kind="nim", names=_NIM)


def _read_lmdeploy(texts: Texts, options: Options) -> EngineFacts:
    return read_named(
        texts,
        options,
        kind="lmdeploy",
        names=_LMDEPLOY,
        also_waiting=(_LMDEPLOY_API_QUEUE,),
    )


def _read_generic(texts: Texts, options: Options) -> EngineFacts:
    return read_named(texts, options, kind="generic", names=options.metrics)


NIM: Final = Adapter(
    kind="nim",
    path="/v1/metrics",
    marks=("gpu_cache_usage_perc", "num_requests_running", "num_requests_waiting"),
    read=_read_nim,
)
LMDEPLOY: Final = Adapter(kind="lmdeploy", marks=("lmdeploy:",), read=_read_lmdeploy)
GENERIC: Final = Adapter(kind="generic", marks=(), read=_read_generic)
