"""Counts the restarts of an engine from its start time, its counters and its absences (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sidecar_agent.engine.facts import EngineFacts

_SAME_START_S: Final = 1.0
"""Start times closer than this are one process (clock granularity)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """What is remembered of the engine process."""

    count: int = 0
    """Restarts seen; counters started from zero with each."""
    seen: bool = False
    gone: bool = False
    """The port refused since the last page."""
    started_at_unix_s: float | None = None
    counters: tuple[float | None, ...] = ()


def gone(lifetime: Lifetime) -> Lifetime:
    """Take in that nobody listens."""
    return replace(lifetime, gone=True)


def heard(lifetime: Lifetime, facts: EngineFacts) -> Lifetime:
    """Take in a page; `count` grows by one when it is another process's.

    In order of trust: a later start time (never an earlier one: several front ends of one engine may
    answer in turn), a counter that went down, and, where the page tells neither, an absence that ended
    with empty counters.
    """
    counters = (
        facts.prompt_tokens_total,
        facts.generation_tokens_total,
        facts.progress_total,
        facts.preemptions_total,
        facts.finished_total,
    )
    restarted = lifetime.seen and (
        _later(lifetime.started_at_unix_s, facts.started_at_unix_s)
        or _fell(lifetime.counters, counters)
        or (
            lifetime.gone
            and (lifetime.started_at_unix_s is None or facts.started_at_unix_s is None)
            and not any(counters)
        )
    )
    return Lifetime(
        count=lifetime.count + restarted,
        seen=True,
        started_at_unix_s=_newest(lifetime.started_at_unix_s, facts.started_at_unix_s),
        # A counter that is absent for one scrape keeps its last value, except in a new process.
        counters=counters if restarted else _latest(lifetime.counters, counters),
    )


def _later(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after > before + _SAME_START_S


def _newest(before: float | None, after: float | None) -> float | None:
    return max((time for time in (before, after) if time is not None), default=None)


def _fell(before: tuple[float | None, ...], after: tuple[float | None, ...]) -> bool:
    return any(
        old is not None and new is not None and new < old
        for old, new in zip(before, after, strict=False)
    )


def _latest(
    before: tuple[float | None, ...], after: tuple[float | None, ...]
) -> tuple[float | None, ...]:
    if not before:
        return after
    return tuple(old if new is None else new for old, new in zip(before, after, strict=True))
