from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.core.plan import TIER_WEIGHT_TOTAL
from xds_server.core.weights import allocate

SHARES = st.lists(
    st.one_of(st.just(0.0), st.floats(0.0, 1e9, allow_subnormal=False)), min_size=1, max_size=40
)


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        pytest.param([1.0], 100, (100,), id="one"),
        pytest.param([1.0, 1.0, 1.0], 100, (34, 33, 33), id="ties go to the earlier"),
        pytest.param([0.5, 0.0, 0.5], 100, (50, 0, 50), id="zero stays zero"),
        pytest.param([0.9996, 0.0004], 1000, (999, 1), id="a non-zero share is at least 1"),
        pytest.param([0.0, 0.0], 100, (0, 0), id="nothing to give"),
        pytest.param([], 100, (), id="nobody"),
        pytest.param([1e308, 1e308], 10, (5, 5), id="huge"),
        pytest.param([5e-324, 5e-324], 10, (5, 5), id="tiny"),
        pytest.param([1.0] + [1e-9] * 9, 12, (3,) + (1,) * 9, id="floors take from the largest"),
    ],
)
def test_allocate_by_table(shares, total, expected):
    assert allocate(shares, total) == expected


@pytest.mark.parametrize(
    ("shares", "total", "said"),
    [
        ([-0.1, 1.0], 10, "shares"),
        ([float("nan")], 10, "shares"),
        ([float("inf"), 1.0], 10, "shares"),
        ([1.0, 1.0, 1.0], 2, "total: 2; expected at least 3"),
    ],
)
def test_what_cannot_be_allocated_is_refused(shares, total, said):
    with pytest.raises(ValueError, match=said):
        allocate(shares, total)


@settings(deadline=None)
@given(SHARES)
def test_parts_add_up_and_zero_means_zero(shares):
    parts = allocate(shares, TIER_WEIGHT_TOTAL)
    assert sum(parts) == (TIER_WEIGHT_TOTAL if any(shares) else 0)
    assert [part > 0 for part in parts] == [share > 0.0 for share in shares]


@settings(deadline=None)
@given(SHARES)
def test_larger_shares_get_no_less(shares):
    parts = allocate(shares, TIER_WEIGHT_TOTAL)
    ordered = sorted(zip(shares, parts, strict=True), key=lambda pair: pair[0])
    for (share, part), (larger, more) in itertools.pairwise(ordered):
        assert more >= part - (1 if share == larger else 0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12, unique=True), st.randoms())
def test_order_does_not_matter_for_distinct_shares(shares, rnd):
    shares = [float(share) for share in shares]
    by_share = dict(zip(shares, allocate(shares, TIER_WEIGHT_TOTAL), strict=True))
    mixed = list(shares)
    rnd.shuffle(mixed)
    again = dict(zip(mixed, allocate(mixed, TIER_WEIGHT_TOTAL), strict=True))
    assert all(abs(by_share[share] - again[share]) <= 1 for share in shares)


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=12), st.data())
def test_a_tiny_move_of_one_share_moves_at_most_one_unit_per_tier(shares, data):
    index = data.draw(st.integers(0, len(shares) - 1))
    moved = list(shares)
    moved[index] += 1e-9
    before, after = allocate(shares, TIER_WEIGHT_TOTAL), allocate(moved, TIER_WEIGHT_TOTAL)
    assert sum(abs(a - b) for a, b in zip(before, after, strict=True)) <= 2


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_parts_are_within_one_of_the_exact_share_unless_floored(shares):
    parts = allocate(shares, 10_000)
    whole = sum(shares)
    floored = sum(1 for share in shares if share and share / whole * 10_000 < 1.0)
    for share, part in zip(shares, parts, strict=True):
        if share:
            assert abs(part - share / whole * 10_000) <= 1.0 + floored
