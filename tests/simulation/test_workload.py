"""What simulated clients ask for."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from xds_server.simulation.workload import CHAT, Lognormal, Profile, arrivals


@pytest.mark.parametrize(
    ("at", "value"),
    [(-1.0, 0.5), (0.0, 0.5), (59.9, 0.5), (60.0, 1.5), (119.9, 1.5), (120.0, 0.5), (999.0, 0.5)],
)
def test_steps_jump_at_their_time(at, value):
    assert Profile.steps((0.0, 0.5), (60.0, 1.5), (120.0, 0.5)).at(at) == value


def test_between_points_a_profile_is_a_straight_line():
    profile = Profile(points=((100.0, 1.0), (160.0, 1.5)))
    assert [profile.at(t) for t in (0.0, 130.0, 200.0)] == [1.0, 1.25, 1.5]
    assert profile.peak == 1.5


def test_lengths_have_the_mean_that_was_asked_for():
    random = Random(1)
    drawn = [Lognormal(mean=200.0, sigma=0.6).draw(random) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(200.0, rel=0.03)
    weighted = sum(x * x for x in drawn) / sum(drawn)
    assert weighted == pytest.approx(Lognormal(mean=200.0, sigma=0.6).length_biased_mean, rel=0.05)


def test_arrivals_follow_the_rate_and_equal_seeds_give_equal_streams():
    rate = Profile.steps((0.0, 5.0), (500.0, 20.0))
    first, second = (
        [
            (r.arrived_at, r.prompt, r.output)
            for r in arrivals(rate=rate, lengths=CHAT, until=1000.0, random=Random(7))
        ]
        for _ in range(2)
    )
    assert first == second
    early = sum(at < 500.0 for at, _, _ in first)
    assert early == pytest.approx(2500, rel=0.08)
    assert len(first) - early == pytest.approx(10_000, rel=0.04)
