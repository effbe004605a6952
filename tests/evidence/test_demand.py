"""What each proxy is asked for, by its own log."""

from __future__ import annotations

import pytest

from xds_server.evidence.demand import FORGOTTEN_S, WINDOW_S, Demand


def test_a_rate_is_known_after_the_first_window_and_follows_the_last_whole_one():
    demand = Demand()
    assert demand.rates(0.0) == {}
    for second in range(10):
        demand.add("a", 30, float(second))
        assert demand.rates(float(second)) == {}
    assert demand.rates(WINDOW_S) == {"a": pytest.approx(30.0)}
    demand.add("a", 10, WINDOW_S + 1)
    assert demand.rates(WINDOW_S + 2) == {"a": pytest.approx(30.0)}
    demand.add("a", 10, 2 * WINDOW_S)
    assert demand.rates(2 * WINDOW_S) == {"a": pytest.approx(1.0)}


def test_a_proxy_that_falls_silent_is_asked_for_nothing_and_then_unknown():
    demand = Demand()
    demand.add("a", 100, 0.0)
    assert demand.rates(WINDOW_S) == {"a": pytest.approx(10.0)}
    assert demand.rates(2 * WINDOW_S) == {"a": 0.0}
    assert demand.rates(2 * WINDOW_S + FORGOTTEN_S) == {}


def test_proxies_are_told_apart():
    demand = Demand()
    demand.add("a", 90, 0.0)
    demand.add("b", 10, 0.0)
    assert demand.rates(WINDOW_S) == {"a": pytest.approx(9.0), "b": pytest.approx(1.0)}


def test_silence_before_a_burst_does_not_thin_it_out():
    demand = Demand()
    demand.add("a", 10, 0.0)
    assert demand.rates(WINDOW_S) == {"a": pytest.approx(1.0)}
    returned = 5 * WINDOW_S
    demand.add("a", 100, returned)
    assert demand.rates(returned + 1) == {"a": 0.0}, "the last whole window was silent"
    assert demand.rates(returned + WINDOW_S) == {"a": pytest.approx(10.0)}


def test_proxies_that_left_are_forgotten_though_nobody_asks():
    demand = Demand()
    for number in range(1000):
        demand.add(f"pod-{number}", 1, float(number))
    assert len(demand._windows) < 2 * FORGOTTEN_S
