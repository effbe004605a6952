"""What the clients got, summed up: tables for a terminal and plain lines for everything else."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from demo.outcome import Death, Outcome, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the play. Seconds of the system's monotonic clock."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How long it took from a cause to the first request that obeyed."""

    cause: str
    effect: str
    after_s: float | None
    """None when it never happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The requests that started in one phase."""

    name: str
    requests: int
    failed: int
    cut: int
    served: Mapping[str, int]
    """Requests by the tier that answered."""
    first_byte_ms: tuple[float, float] | None
    """p50 and p99 from start to the first byte of the body."""
    whole_ms: tuple[float, float] | None
    """p50 and p99 from start to the last byte of complete answers."""


def rows(
    outcomes: Sequence[Outcome],
    phases: Sequence[Phase],
    *,
    deaths: Sequence[Death],
    tiers: Mapping[str, str],
) -> list[Row]:
    """Sum up each phase, and all of them; `tiers` names the tier of each served model."""
    table = []
    for phase in phases:
        mine = [each for each in outcomes if phase.start_s <= each.started_s < phase.end_s]
        table.append(row(phase.name, mine, deaths=deaths, tiers=tiers))
    return [*table, row("all", outcomes, deaths=deaths, tiers=tiers)]


def row(
    name: str,
    outcomes: Sequence[Outcome],
    *,
    deaths: Sequence[Death],
    tiers: Mapping[str, str],
) -> Row:
    """Sum up some requests."""
    verdicts = Counter(each.verdict(deaths) for each in outcomes)
    complete = [each for each in outcomes if each.verdict(deaths) is Verdict.OK]
    return Row(
        name=name,
        requests=len(outcomes),
        failed=verdicts[Verdict.FAILED],
        cut=verdicts[Verdict.CUT],
        served=Counter(tier_of(each, tiers) for each in outcomes if each.status == 200),
        first_byte_ms=_spread([each.wait_s for each in complete if each.wait_s is not None]),
        whole_ms=_spread([each.latency_s for each in complete]),
    )


def tier_of(outcome: Outcome, tiers: Mapping[str, str]) -> str:
    """Return the tier that answered; a model that no tier serves stands for itself."""
    return tiers.get(outcome.model, outcome.model or "?")


def _spread(seconds: Sequence[float]) -> tuple[float, float] | None:
    if not seconds:
        return None
    return percentile(seconds, 0.50) * 1000, percentile(seconds, 0.99) * 1000


def percentile(values: Iterable[float], ratio: float) -> float:
    """Return the value below which `ratio` of the values lie (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise statistics.StatisticsError("no values; expected at least one")
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))]


def outcome_table(table_rows: Sequence[Row], tier_names: Sequence[str]) -> Table:
    """Return the table of phases."""
    table = Table(
        title="What clients got, by the act in which they asked (cut: streams that ran on what died)",
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("phase")
    for name in ("requests", "failed", "cut", *tier_names):
        table.add_column(name, justify="right")
    table.add_column("first byte ms\np50 / p99", justify="right")
    table.add_column("whole answer ms\np50 / p99", justify="right")
    for each in table_rows:
        if each is table_rows[-1]:
            table.add_section()
        table.add_row(
            each.name,
            str(each.requests),
            str(each.failed),
            str(each.cut),
            *(str(each.served.get(name, 0)) for name in tier_names),
            spread_text(each.first_byte_ms),
            spread_text(each.whole_ms),
        )
    return table


def effect_table(effects: Sequence[Effect]) -> Table:
    """Return the table of reaction times."""
    table = Table(title="From cause to obedience", title_justify="left", pad_edge=False)
    table.add_column("cause")
    table.add_column("first request that obeyed")
    table.add_column("after", justify="right")
    for each in effects:
        table.add_row(each.cause, each.effect, after_text(each.after_s))
    return table


def spread_text(spread: tuple[float, float] | None) -> str:
    """Return `p50 / p99` in whole milliseconds."""
    return "-" if spread is None else f"{spread[0]:.0f} / {spread[1]:.0f}"


def after_text(after_s: float | None) -> str:
    """Return a reaction time with the unit that suits its size."""
    if after_s is None:
        return "never"
    return f"{after_s * 1000:.0f} ms" if after_s < 1 else f"{after_s:.1f} s"


def summary_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a few lines on some requests, for a terminal or a log."""
    models = {each.model: each.model for each in outcomes if each.model}
    summed = row("all", outcomes, deaths=(), tiers=models)
    lines = [
        f"requests {summed.requests}, failed {summed.failed}",
        f"first byte ms p50 / p99: {spread_text(summed.first_byte_ms)}",
        f"whole answer ms p50 / p99: {spread_text(summed.whole_ms)}",
    ]
    lines += [f"served by {name}: {count}" for name, count in sorted(summed.served.items())]
    faults = Counter(each.error for each in outcomes if each.error)
    lines += [f"{count} x {fault}" for fault, count in faults.most_common(5)]
    return lines
