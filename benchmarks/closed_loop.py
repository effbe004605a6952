"""The closed loop in simulated time: the real brain against static capacity weights, on equal requests.

Every figure is the median over the seeds, with the least and the largest value beside it. Simulated
seconds do not depend on the machine, so the result is the same everywhere.
"""

from __future__ import annotations

from typing import Any

from xds_server.simulation.scenarios import Outcome, medians, play, scenarios

SEEDS = 5
QUICK_SEEDS = 1


def run(*, quick: bool) -> dict[str, Any]:
    """Play every scenario.

    Args:
        quick: One seed instead of five.

    Returns:
        One row per scenario with its bounds, and whether all of them hold.
    """
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    rows: list[dict[str, Any]] = []
    for scenario in scenarios():
        outcomes = [play(scenario, seed) for seed in seeds]
        median = medians(outcomes)
        rows.append(
            {
                "scenario": scenario.name,
                "brain": {name: round(value, 4) for name, value in median.brain.items()},
                "spread": _spread(outcomes),
                "static_weights": {name: round(value, 4) for name, value in median.static.items()},
                "must": {name: str(must) for name, must in scenario.must.items()},
                "failed": [
                    name
                    for name, must in scenario.must.items()
                    if not must.holds(median.brain[name])
                ],
            }
        )
    return {
        "seeds": len(seeds),
        "holds": not any(row["failed"] for row in rows),
        "rows": rows,
    }


def _spread(outcomes: list[Outcome]) -> dict[str, list[float]]:
    """Return the least and the largest value of every measure."""
    return {
        name: [
            round(min(outcome.brain[name] for outcome in outcomes), 4),
            round(max(outcome.brain[name] for outcome in outcomes), 4),
        ]
        for name in outcomes[0].brain
    }
