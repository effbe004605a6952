"""When an object may be written next."""

from __future__ import annotations

import pytest

from xds_server.istio.kubernetes.errors import Cause
from xds_server.istio.kubernetes.pace import CALM_S, GAP_MAX_S, PERSON_RETRY_S, Pace


def test_writes_are_a_gap_apart():
    pace = Pace(1.0)
    assert pace.due == float("-inf")
    pace.written(10.0)
    assert pace.due == 11.0


def test_a_single_revert_is_answered_at_the_ordinary_pace_and_a_fight_is_slowed_down():
    pace = Pace(1.0)
    pace.written(10.0)
    pace.taken_back(12.0)
    assert not pace.is_fight
    assert pace.due == 11.0
    gaps = []
    now = 13.0
    for _ in range(8):
        pace.written(now)
        now += 1.0
        pace.taken_back(now)
        assert pace.is_fight
        gaps.append(pace.due - now)
        now = pace.due
    assert gaps == [2.0, 4.0, 8.0, 16.0, 32.0, GAP_MAX_S, GAP_MAX_S, GAP_MAX_S]
    pace.written(now + CALM_S + 2 * GAP_MAX_S + 1)
    assert not pace.is_fight
    assert pace.gap_s == 1.0


def test_conflicts_are_tried_again_at_once_at_first():
    pace = Pace(1.0)
    for _ in range(3):
        pace.conflicted(10.0)
    assert pace.due == float("-inf")
    pace.conflicted(10.0)
    assert pace.due == 11.0
    pace.written(11.0)
    pace.conflicted(13.0)
    assert pace.due == 12.0


@pytest.mark.parametrize(
    ("cause", "asked_s", "waits"),
    [
        (Cause.UNREACHABLE, None, [1, 2, 4, 8, 16, 32, 60, 60]),
        (Cause.SERVER, 5.0, [5, 5, 5, 8]),
        (Cause.BUSY, 30.0, [30, 30]),
        (Cause.FORBIDDEN, None, [PERSON_RETRY_S] * 4 + [16]),
    ],
    ids=["unreachable", "server", "busy", "forbidden"],
)
def test_failures_are_tried_again_later_each_time(cause, asked_s, waits):
    pace = Pace(1.0)
    found = []
    for _ in waits:
        pace.failed(100.0, cause, asked_s)
        found.append(pace.due - 100.0)
    assert found == waits
    pace.settled()
    pace.failed(100.0, cause, asked_s)
    assert pace.due - 100.0 == waits[0]
