"""The division of limits over proxies: who gets what, when, and how much a division gives away."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.core.policy import AdmissionPolicy
from xds_server.core.shares import RESERVE, SETTLE_LIMIT, UNITS, Shares

POLICY = AdmissionPolicy()
SETTLE = POLICY.settle_s


def divided(*names: str, at: float = 0.0, policy: AdmissionPolicy = POLICY) -> Shares:
    """Return the shares of proxies that came together and were divided over."""
    shares = Shares(policy)
    shares.update(names, {}, at)
    shares.update(names, {}, at + policy.settle_s)
    return shares


def test_nobody_has_a_part_before_the_first_proxies_have_settled():
    shares = Shares(POLICY)
    assert not shares.update([], {}, 0.0)
    assert shares.deadline is None
    assert not shares.update(["a"], {}, 0.0)
    assert shares.parts == {}
    assert shares.deadline == SETTLE
    assert not shares.update(["a", "b"], {}, 0.5)
    assert shares.deadline == 0.5 + SETTLE
    assert shares.update(["a", "b"], {}, 0.5 + SETTLE)
    assert shares.parts == {"a": 0.5, "b": 0.5}
    assert shares.deadline is None


def test_proxies_that_keep_coming_do_not_put_the_first_division_off_for_ever():
    shares, now = Shares(POLICY), 0.0
    names: list[str] = []
    while not shares.parts:
        names.append(f"proxy-{len(names)}")
        shares.update(names, {}, now)
        now += SETTLE / 2
    assert now <= SETTLE_LIMIT * SETTLE + SETTLE


def test_a_newcomer_gets_a_little_at_once_and_its_full_part_a_moment_later():
    shares = divided("a", "b")
    assert shares.update(["a", "b", "c"], {}, 40.0)
    assert shares.parts == {"a": 0.5, "b": 0.5, "c": RESERVE / 2}
    assert shares.update(["a", "b", "c"], {}, 40.0 + SETTLE)
    assert shares.parts == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_every_newcomer_gets_a_little_however_long_ago_the_last_division_was():
    shares = divided("a")
    shares.update(["a", "b"], {}, 1000.0)
    shares.update(["a", "b", "c"], {}, 1000.0 + SETTLE / 2)
    assert shares.parts == {"a": 1.0, "b": RESERVE / 2, "c": RESERVE / 6}


def test_thousands_who_come_between_two_divisions_all_get_a_part_above_nothing():
    shares = divided("a")
    names = ["a"]
    for number in range(3000):
        names.append(f"proxy-{number}")
        shares.update(names, {}, 40.0)
    assert shares.parts.keys() == set(names)
    assert min(shares.parts.values()) > 1e-10
    assert sum(shares.parts.values()) <= 1 + RESERVE


def test_a_proxy_that_leaves_keeps_its_part_while_it_may_still_be_serving():
    shares = divided("a", "b")
    assert not shares.update(["a"], {}, 40.0)
    assert shares.deadline == 40.0 + POLICY.absent_s
    assert not shares.update(["a", "b"], {}, 45.0)
    assert shares.deadline is None
    shares.update(["a"], {}, 50.0)
    assert shares.update(["a"], {}, 50.0 + POLICY.absent_s)
    assert shares.parts == {"a": 0.5}
    assert shares.update(["a"], {}, shares.deadline or 0.0)
    assert shares.parts == {"a": 1.0}


def test_everybody_may_leave_and_come_back():
    shares = divided("a")
    shares.update([], {}, 100.0)
    assert shares.update([], {}, 200.0)
    assert shares.parts == {}
    assert shares.deadline is None
    shares.update(["a"], {}, 300.0)
    shares.update(["a"], {}, 300.0 + SETTLE)
    assert shares.parts == {"a": 1.0}


def test_a_proxy_that_was_never_given_a_part_may_leave():
    shares = Shares(POLICY)
    shares.update(["a"], {}, 0.0)
    shares.update([], {}, 0.1)
    assert not shares.update([], {}, 60.0)
    assert shares.deadline is None


def test_a_proxy_that_comes_and_goes_at_once_moves_nobody_elses_part():
    shares = divided("a", "b", policy=AdmissionPolicy(absent_s=0.1))
    shares.update(["a", "b", "c"], {}, 40.0)
    shares.update(["a", "b"], {}, 40.1)
    assert shares.update(["a", "b"], {}, 40.3)
    assert not shares.update(["a", "b"], {}, 40.3 + SETTLE)
    assert shares.parts == {"a": 0.5, "b": 0.5}


def test_after_a_restart_proxies_keep_the_parts_that_they_have():
    shares = Shares(POLICY)
    shares.adopt({"a": 0.75, "b": 0.25}, 0.0)
    assert not shares.update([], {}, 0.1)
    assert not shares.update(["a"], {}, 1.0)
    assert not shares.update(["a", "b"], {}, 4.0)
    assert shares.parts == {"a": 0.75, "b": 0.25}
    assert shares.deadline is None


def test_after_a_restart_who_does_not_come_back_loses_its_part():
    shares = Shares(POLICY)
    shares.adopt({"a": 0.75, "b": 0.25}, 0.0)
    shares.update(["a", "c"], {}, 1.0)
    assert shares.parts == {"a": 0.75, "b": 0.25, "c": RESERVE / 2}
    now = 1.0
    while shares.deadline is not None:
        now = shares.deadline
        shares.update(["a", "c"], {}, now)
    assert shares.parts == {"a": 0.5, "c": 0.5}
    assert now < POLICY.divisions_every_s + POLICY.absent_s + SETTLE


@pytest.mark.parametrize(
    "parts", [{}, {"a": 0.0}, {"a": -0.5}, {"a": 1.5}, {"a": 0.7, "b": 0.7}], ids=str
)
def test_parts_that_can_be_none_are_not_adopted(parts):
    shares = Shares(POLICY)
    shares.adopt(parts, 0.0)
    assert shares.parts == {}


def test_parts_follow_what_proxies_are_asked_for_but_nobody_loses_everything():
    shares = divided("a", "b")
    assert shares.update(["a", "b"], {"a": 90.0, "b": 10.0}, 40.0)
    least = POLICY.least_ratio / 2
    assert shares.parts == pytest.approx(
        {"a": least + 0.8 * 0.9, "b": least + 0.8 * 0.1}, abs=1 / (2 * UNITS)
    )


@pytest.mark.parametrize(
    ("demand", "moves"),
    [
        pytest.param({}, False, id="unknown"),
        pytest.param({"a": 0.0, "b": 0.0}, False, id="none"),
        pytest.param({"a": 55.0, "b": 45.0}, False, id="a little"),
        pytest.param({"a": 70.0, "b": 30.0}, False, id="within the hysteresis"),
        pytest.param({"a": 95.0, "b": 5.0}, True, id="much"),
        pytest.param({"a": 100.0}, False, id="the other is taken for the same"),
        pytest.param({"z": 100.0}, False, id="of a stranger"),
    ],
)
def test_only_a_real_shift_of_load_moves_parts(demand, moves):
    shares = divided("a", "b")
    assert shares.update(["a", "b"], demand, 40.0) is moves


def test_what_proxies_are_asked_for_is_smoothed():
    shares = divided("a", "b")
    even, odd = {"a": 50.0, "b": 50.0}, {"a": 100.0, "b": 0.0}
    shares.update(["a", "b"], even, 40.0)
    assert not shares.update(["a", "b"], odd, 41.0)
    now = 41.0
    while not shares.update(["a", "b"], odd, now):
        now += 1.0
    assert 45.0 < now < 80.0


def changed_from(before, shares):
    """How much of the whole the parts are whose buckets are refilled."""
    return sum(part for name, part in shares.parts.items() if before.get(name) != part)


def test_changes_are_few_because_each_refills_buckets():
    shares = divided("a")
    names, now = ["a"], SETTLE
    changes, whole = [(SETTLE, 1.0)], 0
    while now < 300.0:
        now += 0.5
        if now % 3 == 0:
            names.append(f"p{now:g}")
        before = dict(shares.parts)
        shares.update(names, {}, now)
        changes.append((now, changed_from(before, shares)))
        whole += changes[-1][1] == pytest.approx(1.0)
    for end, _ in changes:
        lately = [changed for at, changed in changes if end - POLICY.divisions_every_s < at <= end]
        assert sum(lately) <= POLICY.divisions + 3 * RESERVE, "the reserve once per division"
    assert whole >= 300 / POLICY.divisions_every_s - 1, "nor are divisions put off by who comes"


@pytest.mark.parametrize("fleet", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("apart_s", [0.0, 0.3, 3.0, 25.0])
def test_a_newcomer_has_half_of_an_equal_part_within_seconds_though_a_division_was_lately(
    fleet, apart_s
):
    """Until the fleet is twice as large, or half a minute has passed."""
    there = [f"old-{number}" for number in range(fleet)]
    shares, now = divided(*there), SETTLE
    for number in range(fleet):
        if now + apart_s >= POLICY.divisions_every_s:
            break
        now += apart_s
        there.append(f"new-{number}")
        shares.update(there, {}, now)
        late = now + SETTLE_LIMIT * SETTLE
        while shares.deadline is not None and shares.deadline <= min(late, now + apart_s):
            shares.update(there, {}, shares.deadline)
        if shares.deadline is None or apart_s >= SETTLE_LIMIT * SETTLE:
            assert min(shares.parts.values()) >= 0.5 / len(there) - 1e-9
    while shares.deadline is not None and shares.deadline <= now + SETTLE_LIMIT * SETTLE:
        shares.update(there, {}, shares.deadline)
    assert min(shares.parts.values()) >= 0.5 / len(there) - 1e-9
    assert sum(shares.parts.values()) == pytest.approx(1.0)
    while shares.deadline is not None:
        now = shares.deadline
        shares.update(there, {}, now)
    assert shares.parts == pytest.approx(dict.fromkeys(there, 1 / len(there)))
    assert now <= POLICY.divisions_every_s + SETTLE_LIMIT * SETTLE + 1e-9


def test_who_replaces_a_proxy_gets_the_part_that_is_nobodys_and_no_other_bucket_is_touched():
    shares = divided("a", "b", "c")
    shares.update(["a", "b"], {}, 2.0)
    shares.update(["a", "b"], {}, 2.0 + POLICY.absent_s)
    shares.update(["a", "b", "d"], {}, 13.0)
    shares.update(["a", "b", "d"], {}, 13.0 + SETTLE)
    assert shares.parts == pytest.approx({"a": 1 / 3, "b": 1 / 3, "d": 1 / 3})
    assert shares.parts["a"] == shares.parts["b"] == 1 / 3


def test_nothing_is_taken_from_who_is_not_there_to_hear_of_it():
    shares = divided("a")
    shares.update(["b"], {}, 2.0)
    shares.update(["b"], {}, 2.0 + SETTLE)
    assert shares.parts == {"a": 1.0, "b": RESERVE / 2}, (
        "it may be serving, and nobody else is there"
    )
    shares.update(["a", "b"], {}, 4.0)
    shares.update(["a", "b"], {}, 4.0 + SETTLE)
    assert shares.parts == {"a": 0.5, "b": 0.5}


def test_a_busy_proxy_gives_no_more_than_a_newcomer_is_meant_to_have():
    shares = divided("a", "b", "c")
    there, demand = ["a", "b", "c"], {"a": 80.0, "b": 10.0, "c": 10.0}
    shares.update(there, demand, 40.0)
    had = dict(shares.parts)
    shares.update([*there, "d"], demand, 45.0)
    shares.update([*there, "d"], demand, 45.0 + SETTLE)
    assert shares.parts["a"] == had["a"] - shares.parts["d"] > had["a"] / 2
    assert shares.parts["b"] == had["b"]


def test_what_is_left_is_kept_for_those_who_come_next():
    shares = divided("a", "b", policy=AdmissionPolicy(divisions=3))
    shares.update(["a", "b", "c"], {}, 5.0)
    shares.update(["a", "b", "c"], {}, 5.0 + SETTLE)
    halved = {"a": 0.25, "b": 0.5, "c": 0.25}
    assert shares.parts == halved
    assert shares.deadline == SETTLE + POLICY.divisions_every_s
    shares.update(["a", "b", "c"], {}, 20.0)
    assert shares.parts == halved


def test_with_one_division_newcomers_wait_for_it():
    shares = divided("a", "b", policy=AdmissionPolicy(divisions=1))
    shares.update(["a", "b", "c"], {}, 5.0)
    shares.update(["a", "b", "c"], {}, 5.0 + SETTLE)
    assert shares.parts["c"] == RESERVE / 2
    assert shares.deadline == SETTLE + POLICY.divisions_every_s


NAMES = st.sets(st.sampled_from("abcdefgh"))


@given(
    st.lists(
        st.tuples(
            NAMES,
            st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e6)),
            st.floats(0.01, 40.0),
        ),
        max_size=40,
    )
)
def test_no_more_than_the_limit_and_the_reserve_is_ever_given_out(steps):
    shares, now, has_divided = Shares(POLICY), 0.0, False
    refilled: list[tuple[float, float]] = []
    for names, demand, wait_s in steps:
        now += wait_s
        before = dict(shares.parts)
        changed = shares.update(names, demand, now)
        assert changed == (shares.parts != before)
        refilled.append((now, changed_from(before, shares)))
        since = now - POLICY.divisions_every_s
        assert sum(part for at, part in refilled if at > since) <= POLICY.divisions + 3 * RESERVE
        assert all(part > 0 for part in shares.parts.values())
        assert sum(shares.parts.values()) <= 1 + RESERVE + 1e-9
        assert shares.deadline is None or shares.deadline > now
        # Whoever was divided over has its part until it is gone for long.
        assert not (names & before.keys()) - shares.parts.keys()
        # Once there was a division nobody waits for the next one with nothing.
        has_divided = has_divided or bool(shares.parts)
        assert not has_divided or names <= shares.parts.keys()


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), min_size=1, max_size=30))
def test_parts_are_few_multiples_and_add_up(demand):
    shares = Shares(POLICY)
    shares.update(demand, demand, 0.0)
    shares.update(demand, demand, 40.0)
    count = len(demand)
    assert math.isclose(sum(shares.parts.values()), 1.0)
    assert min(shares.parts.values()) >= POLICY.least_ratio / count - 1e-9
    if sum(demand.values()):
        assert all(
            math.isclose(part * UNITS * count, round(part * UNITS * count))
            for part in shares.parts.values()
        )


STEPS = st.lists(st.tuples(NAMES, st.floats(0.01, 15.0)), min_size=1, max_size=30)


@given(STEPS, st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e6)))
def test_whoever_comes_and_goes_half_a_minute_admits_at_most_five_percent_too_much(steps, demand):
    """Every proxy takes all it can all the time: its part, and a full bucket after every change of it."""
    shares, now, span = Shares(POLICY), 0.0, 30.0
    present: set[str] = set()
    rates: list[tuple[float, float]] = [(0.0, 0.0)]
    gifts: list[tuple[float, float]] = []

    def update(names: set[str]) -> None:
        before = dict(shares.parts)
        shares.update(names, demand, now)
        changed = [part for name, part in shares.parts.items() if before.get(name) != part]
        gifts.append((now, sum(changed) * POLICY.burst_s))
        rates.append((now, sum(shares.parts.values())))

    for names, wait_s in steps:
        end = now + wait_s
        while shares.deadline is not None and shares.deadline <= end:
            now = shares.deadline
            update(present)
        now, present = end, names
        update(present)
        since = now - span
        full = max(rate for at, rate in rates if at <= since) * POLICY.burst_s if since > 0 else 0.0
        following = [*(at for at, _ in rates[1:]), now]
        filled = sum(
            rate * max(0.0, until - max(at, since))
            for (at, rate), until in zip(rates, following, strict=True)
        )
        given_away = sum(gift for at, gift in gifts if at > since)
        assert filled + given_away + full <= 1.05 * span + 1e-6


def test_after_everybody_left_the_first_who_comes_back_is_not_given_everything():
    shares = divided("a", "b")
    shares.update([], {}, 40.0)
    assert shares.update([], {}, 40.0 + POLICY.absent_s)
    back = 1000.0
    shares.update(["a"], {}, back)
    shares.update(["a", "b"], {}, back + SETTLE / 2)
    assert sum(shares.parts.values()) <= RESERVE, "others may be on their way"
    shares.update(["a", "b"], {}, back + 2 * SETTLE)
    assert shares.parts == {"a": 0.5, "b": 0.5}
