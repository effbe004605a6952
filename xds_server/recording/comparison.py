"""A comparison as a table for people and as numbers for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from xds_server.core.plan import Level
from xds_server.recording.replay import Comparison, Curve, Run


def document(comparison: Comparison) -> dict[str, Any]:
    """Return it as JSON values."""
    return {
        "span_s": comparison.span_s,
        "start_unix_s": comparison.start_unix_s,
        "config_version": comparison.config_version,
        "evaluations": comparison.evaluations,
        "same_as_recorded": comparison.same_as_recorded,
        "is_same_policy": comparison.is_same_policy,
        "is_whole": comparison.is_whole,
        "recorded": _run(comparison.recorded, comparison.span_s),
        "other": _run(comparison.other, comparison.span_s),
    }


def _run(run: Run, span_s: float) -> dict[str, Any]:
    return {
        "tiers": [
            {
                "model": model,
                "tier": tier,
                "mean_share": curve.mean(span_s),
                "highest_share": _highest(curve),
                "moves": _moves(curve),
                "level_s": {level.value: curve.pressed_s.get(level, 0.0) for level in Level},
                "shares": [list(each) for each in curve.weights],
            }
            for (model, tier), curve in run.curves.items()
        ],
        "events": dict(sorted(run.events.items())),
    }


def show_comparison(comparison: Comparison, other: str, console: Console) -> None:
    """Print it: a row per tier, then the events whose number differs."""
    console.width = max(console.width, 100)
    table = Table(title=f"{comparison.span_s:.1f} s, {comparison.evaluations} evaluations")
    for name in ("tier", "policy"):
        table.add_column(name)
    for name in ("mean share", "highest", "moves", "degraded", "critical"):
        table.add_column(name, justify="right")
    for place in comparison.recorded.curves:
        runs = [("as recorded", comparison.recorded), (other, comparison.other)]
        for label, run in runs[:1] if comparison.is_same_policy else runs:
            curve = run.curves.get(place, Curve())
            table.add_row("/".join(place), label, *_cells(curve, comparison.span_s))
    console.print(table)
    ours, theirs = comparison.recorded.events, comparison.other.events
    for name in sorted(set(ours) | set(theirs)):
        if ours[name] != theirs[name]:
            console.print(f"{name}: {ours[name]} as recorded, {theirs[name]} with {other}")
    same = f"{comparison.same_as_recorded} of {comparison.evaluations}"
    console.print(f"Played as recorded, {same} decisions are the ones that were made.")
    if comparison.is_same_policy:
        console.print("Both policies are the same, and so is the fleet.")


def _cells(curve: Curve, span_s: float) -> tuple[str, ...]:
    return (
        f"{curve.mean(span_s):.1%}",
        f"{_highest(curve):.1%}",
        str(_moves(curve)),
        f"{curve.pressed_s.get(Level.DEGRADED, 0.0):.1f} s",
        f"{curve.pressed_s.get(Level.CRITICAL, 0.0):.1f} s",
    )


def _highest(curve: Curve) -> float:
    return max((weight for _, weight in curve.weights), default=0.0)


def _moves(curve: Curve) -> int:
    return max(0, len(curve.weights) - 1)
