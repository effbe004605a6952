from __future__ import annotations

import itertools
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.core.levels import LevelTrack, deadline, step
from xds_server.core.plan import Level
from xds_server.core.policy import KvPolicy

POLICY = KvPolicy(high=0.80, critical=0.95, margin=0.10, hold_s=5.0)
HEALTHY, DEGRADED, CRITICAL = Level.HEALTHY, Level.DEGRADED, Level.CRITICAL


def after(track, pressure, now, *, queue_empty=True):
    return step(track, pressure=pressure, queue_empty=queue_empty, policy=POLICY, now=now)


@pytest.mark.parametrize(
    ("level", "pressure", "expected"),
    [
        (HEALTHY, 0.79, HEALTHY),
        (HEALTHY, 0.80, DEGRADED),
        (HEALTHY, 0.95, CRITICAL),
        (DEGRADED, 0.949, DEGRADED),
        (DEGRADED, 0.95, CRITICAL),
        (DEGRADED, 0.10, DEGRADED),
        (CRITICAL, 0.10, CRITICAL),
        (CRITICAL, 2.00, CRITICAL),
    ],
)
def test_levels_are_entered_at_once_and_not_left_at_once(level, pressure, expected):
    assert after(LevelTrack(level=level), pressure, 0.0).level is expected


def test_a_calm_tier_leaves_critical_straight_to_healthy():
    track = after(LevelTrack(level=CRITICAL), 0.5, 10.0)
    assert deadline(track, POLICY) == 15.0
    assert after(track, 0.5, 14.9).level is CRITICAL
    assert after(track, 0.5, 15.0) == LevelTrack()


def test_a_tier_that_only_eased_leaves_critical_to_degraded():
    track = after(LevelTrack(level=CRITICAL), 0.75, 10.0)
    assert deadline(track, POLICY) == 15.0
    assert after(track, 0.75, 15.0) == LevelTrack(level=DEGRADED)


def test_a_queue_keeps_the_level_however_low_the_usage_is():
    track = LevelTrack(level=DEGRADED)
    for now in range(60):
        track = after(track, 0.10, float(now), queue_empty=False)
    assert track.level is DEGRADED
    assert deadline(track, POLICY) == inf


@pytest.mark.parametrize("again", [0.75, 0.85], ids=["above the margin", "above the watermark"])
def test_the_hold_starts_anew_when_pressure_returns(again):
    track = after(LevelTrack(level=DEGRADED), 0.5, 0.0)
    track = after(track, again, 4.0)
    track = after(track, 0.5, 4.5)
    assert after(track, 0.5, 9.0).level is DEGRADED
    assert after(track, 0.5, 9.5).level is HEALTHY


def test_unknown_pressure_keeps_the_level_and_is_no_evidence():
    track = after(LevelTrack(level=DEGRADED), 0.5, 0.0)
    track = after(track, None, 4.0)
    assert track == LevelTrack(level=DEGRADED)
    assert after(LevelTrack(), None, 0.0) == LevelTrack()


def test_nothing_new_keeps_the_object():
    healthy, critical = LevelTrack(), LevelTrack(level=CRITICAL)
    assert after(healthy, 0.5, 0.0) is healthy
    assert after(critical, 1.0, 0.0) is critical


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.booleans()), max_size=200))
def test_no_sequence_of_pressures_makes_it_flap(readings):
    """Every way down costs one hold, so a window of one hold sees at most one."""
    track, changes = LevelTrack(), []
    for number, (pressure, queue_empty) in enumerate(readings):
        now = number * 0.25
        new = after(track, pressure, now, queue_empty=queue_empty)
        if new.level is not track.level:
            changes.append((now, new.level))
        track = new
    order = [HEALTHY, DEGRADED, CRITICAL]
    downs = [
        now
        for (now, level), (_, before) in zip(changes, [(0.0, HEALTHY), *changes], strict=False)
        if order.index(level) < order.index(before)
    ]
    assert all(b - a >= POLICY.hold_s for a, b in itertools.pairwise(downs))
