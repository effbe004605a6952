"""Range checks between a page and `EngineFacts`: what is out of range is missing, and counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from sidecar_agent.engine.exposition import Page, Series
from sidecar_agent.engine.facts import EngineFacts

_ROUNDING: Final = 1e-6
"""A full cache may come out as 1.0000000002; that is full, not one percent."""

MAX_COUNT: Final = 1e15
"""More tokens than any engine makes; the control plane refuses samples with larger numbers."""


class Intake:
    """Collects the numbers of one page; counts what it refuses and says why."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.rejected = page.malformed
        self.warnings: list[str] = []
        if page.malformed:
            self.warnings.append(f"{page.malformed} malformed lines of known metrics")

    def ratios(self, series: Iterable[Series]) -> list[float]:
        """Return usable ratios in [0, 1].

        Names that end in `_perc` hold ratios in every engine known; a value in (1, 100] therefore means
        that the whole page is in percent, which is converted with a warning. Above 100, negative, NaN
        and infinite values are rejected.
        """
        values = [series.value for series in series]
        usable = [value for value in values if 0.0 <= value <= 100.0]
        self._reject(len(values) - len(usable), "ratio")
        if any(value > 1.0 + _ROUNDING for value in usable):
            self.warnings.append("ratio above 1 read as percent")
            return [value / 100.0 for value in usable]
        return [min(value, 1.0) for value in usable]

    def counts(self, series: Iterable[Series]) -> list[float]:
        """Return the values that can be counts; negative, NaN and absurdly large ones are rejected."""
        values = [series.value for series in series]
        usable = [value for value in values if 0.0 <= value < MAX_COUNT]
        self._reject(len(values) - len(usable), "count")
        return usable

    def total(self, *names: str, where: Callable[[Series], bool] | None = None) -> float | None:
        """Return the sum over the series of the first of `names` that is there; None if none is.

        A sum that lacks a part is missing too: a counter that is lower for one scrape would look like a restart.
        """
        series = self.page.first_of(names)
        wanted = [one for one in series if where is None or where(one)]
        usable = self.counts(wanted)
        is_whole = len(usable) == len(wanted) and self.page.incomplete.isdisjoint(names)
        return sum(usable) if usable and is_whole else None

    def largest(self, *names: str) -> float | None:
        """Return the largest value of the first of `names` that is there; None if none is."""
        return max(self.counts(self.page.first_of(names)), default=None)

    def _reject(self, count: int, what: str) -> None:
        if count:
            self.rejected += count
            self.warnings.append(f"{count} {what} values out of range")


COUNTS: Final = (
    "waiting",
    "running",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "progress_total",
    "finished_total",
    "slots",
    "kv_capacity_tokens",
)
"""Facts that are counts."""


def believable(facts: EngineFacts) -> EngineFacts:
    """Return the facts without counts that are too large: sums and products of numbers that were in range."""
    odd = [
        name
        for name in COUNTS
        if (value := getattr(facts, name)) is not None and value >= MAX_COUNT
    ]
    if not odd:
        return facts
    missing: dict[str, Any] = dict.fromkeys(odd)
    return replace(
        facts,
        **missing,
        rejected=facts.rejected + len(odd),
        warnings=(*facts.warnings, f"out of range: {', '.join(odd)}"),
    )


def added(*values: float | None) -> float | None:
    """Return the sum of the numbers that are there; None if none is."""
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def label_number(series: Series, label: str) -> float | None:
    """Return the number in a label of an info metric; None for absent, "None" and nonsense."""
    try:
        number = float(series.labels.get(label, ""))
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
