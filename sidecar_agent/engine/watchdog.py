"""Tells an engine that hangs from one that is busy (pure).

A hung vLLM or SGLang answers /health and /metrics for ever with frozen values (seen by stopping the
engine process behind its front end); a hung llama.cpp answers nothing. So there are two signs: work in
the engine while nothing at all moves, and silence on an open port. KV usage counts as movement, because
a long prefill allocates blocks for seconds before any token counter moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sidecar_agent.engine.facts import EngineFacts, EngineState

MIN_SILENT_SCRAPES: Final = 3
"""Fewer unanswered scrapes than this prove nothing, however slow they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the watchdog remembers of one engine."""

    mark: tuple[float | None, ...] | None = None
    still_since: float | None = None
    """When the mark was first seen as it is now, while there was work."""
    silent_since: float | None = None
    silent_scrapes: int = 0

    def silent(self, now: float) -> float:
        """Return for how many seconds scrapes have gone unanswered; 0 below three of them."""
        if self.silent_since is None or self.silent_scrapes < MIN_SILENT_SCRAPES:
            return 0.0
        return now - self.silent_since

    def still(self, now: float) -> float:
        """Return for how many seconds there has been work without progress."""
        return 0.0 if self.still_since is None else now - self.still_since


def heard(watch: Watch, facts: EngineFacts, *, at: float) -> Watch:
    """Take in a page. Facts without a progress counter say nothing about hanging."""
    busy = (facts.running or 0.0) + (facts.waiting or 0.0) > 0.0
    if not busy or facts.state is not EngineState.UP or facts.progress_total is None:
        return Watch()
    mark = (
        facts.progress_total,
        facts.prompt_tokens_total,
        facts.preemptions_total,
        facts.finished_total,
        facts.kv_ratio,
    )
    since = watch.still_since if mark == watch.mark else at
    return Watch(mark=mark, still_since=at if since is None else since)


def unheard(watch: Watch, *, at: float) -> Watch:
    """Take in a scrape that got no answer."""
    return replace(
        watch,
        silent_since=at if watch.silent_since is None else watch.silent_since,
        silent_scrapes=watch.silent_scrapes + 1,
    )
