from __future__ import annotations

from math import inf

import pytest

from xds_server.core.freshness import classify, deadline
from xds_server.core.plan import Freshness
from xds_server.core.policy import TelemetryPolicy

POLICY = TelemetryPolicy(interval_s=1.0, stale_intervals=3.0, blind_after_s=30.0)


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [
        pytest.param(-1.0, Freshness.FRESH, id="from the future"),
        pytest.param(0.0, Freshness.FRESH, id="new"),
        pytest.param(2.999, Freshness.FRESH, id="almost stale"),
        pytest.param(3.0, Freshness.HOLD, id="stale"),
        pytest.param(29.999, Freshness.HOLD, id="almost blind"),
        pytest.param(30.0, Freshness.BLIND, id="blind"),
        pytest.param(1e9, Freshness.BLIND, id="ancient"),
    ],
)
def test_age_decides(age_s, expected):
    assert classify(100.0, POLICY, 100.0 + age_s) is expected


def test_no_sample_is_blind_and_never_changes_by_itself():
    assert classify(None, POLICY, 5.0) is Freshness.BLIND
    assert deadline(None, Freshness.BLIND, POLICY) == inf


@pytest.mark.parametrize("observed_at", [0.0, 0.1, 17.3, 1e6 + 1 / 3])
def test_the_deadline_is_exactly_when_the_answer_changes(observed_at):
    fresh_until = deadline(observed_at, Freshness.FRESH, POLICY)
    assert classify(observed_at, POLICY, fresh_until) is Freshness.HOLD
    hold_until = deadline(observed_at, Freshness.HOLD, POLICY)
    assert classify(observed_at, POLICY, hold_until) is Freshness.BLIND
    assert deadline(observed_at, Freshness.BLIND, POLICY) == inf


def test_blind_before_stale_goes_straight_to_blind():
    hasty = TelemetryPolicy(interval_s=15.0, stale_intervals=3.0, blind_after_s=5.0)
    assert deadline(0.0, Freshness.FRESH, hasty) == 5.0
    assert classify(0.0, hasty, 5.0) is Freshness.BLIND
