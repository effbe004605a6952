"""What came of one scrape: a page, or one of the different ways of not getting one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sidecar_agent.engine.facts import EngineFacts


class OutcomeKind(StrEnum):
    """How a scrape ended."""

    PAGE = "page"
    REFUSED = "refused"
    """Nobody listens, or the connection was reset twice: the engine is gone (or, vLLM, loading)."""
    LOADING = "loading"
    """The engine itself says that it loads (llama.cpp's 503)."""
    SILENT = "silent"
    """Connected, but no whole page within the deadline."""
    UNREACHABLE = "unreachable"
    """No connection within the deadline, no route, or no such name."""
    BAD_PAGE = "bad_page"
    """Another status than 200, a redirect, or a page over the size limit: nothing about the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one scrape at one moment."""

    kind: OutcomeKind
    at: float
    """Monotonic seconds when the page's first byte arrived, or when the scrape failed."""
    took_s: float = 0.0
    page_bytes: int = 0
    detail: str = ""
    facts: EngineFacts | None = None
    """Set for PAGE only."""
    engine: str = ""
    """Kind of engine that the page was read as."""
