"""What an engine adapter is: which pages it reads and a pure function from their texts to facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidecar_agent.engine.exposition import Page
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.intake import Intake


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator knows about an engine and its page does not say."""

    kv_capacity_tokens: float | None = None
    """TGI: MAX_BATCH_TOTAL_TOKENS."""
    slots: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Generic: fact name to exact sample name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The pages of one scrape. None = the engine does not offer that page."""

    metrics: str | None
    slots: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One kind of engine."""

    kind: str
    path: str = "/metrics"
    slots_path: str | None = None
    """llama.cpp's second page."""
    keep_alive: bool = True
    """Whether to keep the connection between scrapes."""
    marks: tuple[str, ...]
    """Any line that starts with one of these tells the engine; most specific engine first."""
    read: Callable[[Texts, Options], EngineFacts]
    """Pure; never raises for what a page holds."""


def nothing(kind: str, intake: Intake) -> EngineFacts:
    """Return the facts of a page that answers but has none of the engine's numbers.

    Seen while loading and when a front end runs in the wrong multi-process mode (vllm#7188, #8612).
    Missing, never idle.
    """
    return EngineFacts(
        state=EngineState.UNKNOWN,
        detail=f"the page has no {kind} numbers (still loading, or metrics are off)",
        rejected=intake.rejected,
        warnings=tuple(intake.warnings),
    )


def has_any(page: Page, names: tuple[str, ...]) -> bool:
    """Return whether the page holds any series of `names`."""
    return any(page[name] for name in names)


def mean(values: list[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return sum(values) / len(values) if values else None
