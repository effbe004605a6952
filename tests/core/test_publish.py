from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.brain import Brain, model, small_fleet, tier, topology
from xds_server.core.publish import route


@pytest.mark.parametrize(
    ("shares", "able", "expected"),
    [
        pytest.param([0.7, 0.3, 0.0], [1, 1, 1], [0.7, 0.3, 0.0], id="all can serve"),
        pytest.param([0.7, 0.3, 0.0], [0, 1, 1], [0.0, 1.0, 0.0], id="moves downstream"),
        pytest.param([0.7, 0.3, 0.0], [0, 0, 1], [0.0, 0.0, 1.0], id="static takes all"),
        pytest.param([0.7, 0.3], [1, 0], [1.0, 0.0], id="upstream when nothing is behind"),
        pytest.param([0.7, 0.3], [0, 0], [1.0, 0.0], id="nobody can: the first"),
        pytest.param([0.0, 0.0], [0, 1], [0.0, 1.0], id="no shares at all"),
    ],
)
def test_shares_go_where_they_can_be_served(shares, able, expected):
    assert route(shares, [bool(a) for a in able]) == pytest.approx(expected)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=6).filter(
        lambda tiers: sum(share for share, _ in tiers) > 0.01
    )
)
def test_nothing_is_lost_and_nothing_goes_where_nobody_is(tiers):
    shares = [share / sum(s for s, _ in tiers) for share, _ in tiers]
    able = [can for _, can in tiers]
    given_to = route(shares, able)
    assert sum(given_to) == pytest.approx(1.0)
    if any(able):
        assert all(can or share == 0.0 for share, can in zip(given_to, able, strict=True))


def test_instances_that_change_places_keep_their_plans_and_an_exchanged_one_gets_its_own():
    brain = Brain(small_fleet())
    brain.run(("a", "b", "c", "f"), until=60.0)
    before = {name: brain.instance(name) for name in "abc"}
    brain.retarget(topology(model("chat", tier("primary", "b", "a", "d"), tier("fallback", "f"))))
    assert brain.instance("a") is before["a"]
    assert brain.instance("b") is before["b"]
    assert [each.id for each in brain.tier().instances] == ["b", "a", "d"]
    assert brain.instance("d").ceiling == 0.10


def test_a_tier_that_is_no_longer_frozen_says_how_much_of_it_is_up_to_date():
    brain = Brain(small_fleet())
    brain.run(("a", "b", "c", "f"), until=60.0)
    brain.run(("f",), until=120.0)
    ((_, frozen),) = brain.named("tier_frozen")
    assert frozen.reason.text.startswith("Too many of its instances send no telemetry")
    brain.run(("a", "b"), until=122.0)
    (_, unfrozen), *_ = brain.named("tier_unfrozen")
    assert "up to date have 67% of its capacity" in unfrozen.reason.text
    assert unfrozen.reason.inputs["fresh_ratio"] == pytest.approx(2 / 3)
