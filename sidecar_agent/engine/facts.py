"""What an engine said in one scrape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """Whether the engine can serve."""

    UNKNOWN = "unknown"
    UP = "up"
    LOADING = "loading"
    DOWN = "down"
    HUNG = "hung"
    SLEEPING = "sleeping"


class TokenResult(StrEnum):
    """What came of asking the engine for one token."""

    OK = "ok"
    BUSY = "busy"
    """Rejected, or late while it had other work: no fault."""
    SILENT = "silent"
    """Late although it had nothing else to do."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TokenProbe:
    """The last such answer."""

    result: TokenResult
    row: int
    """Silent or failed answers in a row."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Numbers of one engine, reduced over its data-parallel ranks. None = missing."""

    state: EngineState = EngineState.UNKNOWN
    detail: str = ""
    kv_ratio: float | None = None
    """Used share of the KV cache, 0-1, the largest over ranks."""
    kv_ratio_mean: float | None = None
    waiting: float | None = None
    """Queued requests, summed over ranks."""
    running: float | None = None
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    """Tokens generated; live where the engine has a live token counter, else at the end of requests."""
    progress_total: float | None = None
    """Anything that grows while the engine computes, whatever its unit; feeds the watchdog only.
    None where the engine counts nothing while a request runs."""
    finished_total: float | None = None
    slots: float | None = None
    kv_capacity_tokens: float | None = None
    reserved_ratio: float | None = None
    started_at_unix_s: float | None = None
    """The engine process's own start time, where it says so: tells restarts apart."""
    token_probe: TokenProbe | None = None
    """None where the agent is not told to ask, or nothing can be said."""
    rejected: int = 0
    """Values that were out of range and treated as missing."""
    warnings: tuple[str, ...] = ()
