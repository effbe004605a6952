"""The closed loop stands every incident; the benchmark plays the same ones with five seeds."""

from __future__ import annotations

import pytest

from xds_server.simulation.scenarios import Must, Outcome, medians, play, scenarios

SEEDS = (0,)
# The lag in between is left to the benchmark.
PLAYED = [scenario for scenario in scenarios() if scenario.spec.lag_s != 2.0]


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.name)
def test_the_loop_stands(scenario):
    outcome = medians([play(scenario, seed) for seed in SEEDS])
    failed = {
        name: (outcome.brain[name], str(must))
        for name, must in scenario.must.items()
        if not must.holds(outcome.brain[name])
    }
    assert not failed, outcome.brain


def test_every_scenario_has_its_own_name():
    names = [scenario.name for scenario in scenarios()]
    assert len(set(names)) == len(names) == 30


@pytest.mark.parametrize(
    ("must", "inside", "outside", "text"),
    [
        (Must(least=0.88), 0.88, 0.87, ">= 0.88"),
        (Must(most=15.0), 15.0, 15.1, "<= 15"),
        (Must(least=1.0, most=2.0), 1.5, 2.5, ">= 1 and <= 2"),
    ],
)
def test_a_bound_is_inclusive_and_says_what_it_is(must, inside, outside, text):
    assert must.holds(inside)
    assert not must.holds(outside)
    assert str(must) == text


def test_medians_are_taken_of_every_measure():
    outcomes = [Outcome(brain={"x": x}, static={"y": 2 * x}) for x in (1.0, 9.0, 2.0)]
    assert medians(outcomes) == Outcome(brain={"x": 2.0}, static={"y": 4.0})
