"""How much each tier passes on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.core import spill
from xds_server.core.demand import offered
from xds_server.core.flow import InstanceFlow
from xds_server.core.limits import Limit
from xds_server.core.plan import Level
from xds_server.core.policy import SpillPolicy
from xds_server.core.spill import TierReading

POLICY = SpillPolicy()
NO_LIMIT = Limit()


def flow(rate, *, service_s=8.0, requests=300.0, tokens=0.0):
    """An instance that admits `rate` requests/s and has learned its service time."""
    return InstanceFlow(
        at=0.0,
        admitted=rate * 2.0,
        admitted_s=0.0 if rate is None else 2.0,
        completed=requests,
        busy_slot_s=requests * service_s,
        tokens=tokens * requests,
        token_requests=requests if tokens else 0.0,
    )


def blind(*, requests=300.0):
    """An instance whose engine has no counters."""
    return InstanceFlow(at=0.0)


def reading(**changes):
    values = {
        "slots": 160.0,
        "available_slots": 160.0,
        "fresh_ratio": 1.0,
        "running": 140.0,
        "waiting": 0.0,
        "pressure": 0.8,
        "flows": (),
        "limit": NO_LIMIT,
        "is_static": False,
        "level": Level.DEGRADED,
        "frozen": False,
        "lag_s": 0.1,
    }
    return TierReading(**(values | changes))


STATIC = reading(
    slots=0.0, available_slots=0.0, running=None, waiting=None, pressure=None, is_static=True,
    level=Level.HEALTHY,
)  # fmt: skip


def once(*readings, policy=POLICY, state=None, now=0.0):
    state, shares, _ = spill.step(state or spill.initial(len(readings)), readings, policy, now)
    return shares


def run(*readings, policy=POLICY, state=None, start=0.0, seconds=60.0, every=0.5):
    """Step with the same readings for a while and return every first tier's spill."""
    state = state or spill.initial(len(readings))
    found = []
    for number in range(int(seconds / every)):
        state, shares, _ = spill.step(state, readings, policy, start + number * every)
        found.append(shares[0].spill)
    return state, found


# Fed forward from demand. 160 slots at 8 s complete 20 requests/s.


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        pytest.param(10.0, 0.0, id="half"),
        pytest.param(18.0, 0.0, id="below the target"),
        pytest.param(19.5, 1.0 - 0.94 * 20.0 / 19.5, id="above the target"),
        pytest.param(25.0, 1.0 - 0.94 * 20.0 / 25.0, id="1.25x"),
        pytest.param(40.0, 1.0 - 0.94 * 20.0 / 40.0, id="2x"),
    ],
)
def test_a_tier_keeps_what_loads_it_to_the_target(rate, expected):
    first, rest = once(reading(flows=(flow(rate),)), STATIC)
    assert isclose(first.spill, expected, abs_tol=1e-9)
    assert isclose(first.share + rest.share, 1.0)
    assert isclose(first.demand, rate)
    assert isclose(first.capacity, 20.0)
    assert rest.capacity is None


def test_a_healthy_tier_spills_only_when_demand_exceeds_its_capacity():
    for rate, spills in ((19.5, False), (20.5, True)):
        first, _ = once(reading(flows=(flow(rate),), level=Level.HEALTHY), STATIC)
        assert (first.spill > 0.0) is spills


def test_what_every_tier_admits_counts_as_demand():
    primary = reading(flows=(flow(10.0), flow(5.0)))
    fallback = reading(flows=(flow(10.0),))
    shares = once(primary, fallback, STATIC)
    assert isclose(shares[0].demand, 25.0)


def test_two_first_samples_that_arrive_together_are_not_a_flood():
    burst = replace(flow(25.0), admitted=10.0, admitted_s=0.002)
    crowd = reading(flows=(burst,))

    first, _ = once(crowd, STATIC)

    assert first.demand == 10.0, "as over one second, not 5,000 per second"
    assert first.spill == 0.0


def test_shares_multiply_down_the_chain():
    primary = reading(flows=(flow(40.0),))
    fallback = reading(slots=80.0, available_slots=80.0, flows=(flow(0.0),))
    shares = once(primary, fallback, STATIC)
    first, second = shares[0].spill, shares[1].spill
    assert isclose(first, 1.0 - 0.94 * 20.0 / 40.0)
    assert isclose(second, 1.0 - 0.94 * 10.0 / (40.0 * first))
    assert isclose(shares[1].share, first * (1.0 - second))
    assert isclose(shares[2].share, first * second)


def test_requests_that_the_static_tier_answered_are_added_to_the_demand():
    # 30/s are offered, 18.8/s fit; the flows show only these.
    primary = reading(flows=(flow(18.8),))
    state = spill.SpillState(
        tiers=(spill.TierSpill(spill=0.373, published=0.373), spill.TierSpill()),
        at=0.0,
        demand=30.0,
        unseen_ratio=1.0 - 18.8 / 30.0,
    )
    state, found = run(primary, STATIC, state=state, start=0.5)
    assert found[-1] == pytest.approx(0.373, abs=0.02)
    assert state.unseen_ratio == pytest.approx(0.373, abs=0.02)


def test_demand_is_kept_while_no_engine_may_take_anything():
    state = spill.SpillState(tiers=(spill.TierSpill(),) * 2, at=0.0, demand=30.0)
    gone = reading(available_slots=0.0, flows=(flow(0.0),), running=None, waiting=None)
    state, found = run(gone, STATIC, state=state, start=0.5, seconds=300.0)
    assert found[-1] == 1.0
    assert state.demand == 30.0


def test_demand_behind_a_static_tier_is_found_again_when_it_has_ended():
    state = spill.SpillState(
        tiers=(spill.TierSpill(spill=0.99, published=0.99), spill.TierSpill()),
        at=0.0,
        demand=2000.0,
        unseen_ratio=0.99,
    )
    _, found = run(reading(flows=(flow(0.0),)), STATIC, state=state, start=0.5, seconds=300.0)
    assert found[-1] == 0.0


@pytest.mark.parametrize("available", [4.0, 40.0, 160.0])
def test_a_silent_tier_that_may_serve_again_gets_what_its_ceilings_allow(available):
    state, _ = run(reading(available_slots=0.0), STATIC)
    back = reading(available_slots=available, frozen=True, flows=(flow(0.0),))
    state, found = run(back, STATIC, state=state, start=60.0)
    assert set(found) == {1.0 - available / 160.0}
    assert state.tiers[0].reason.rule == "telemetry_silent"


def test_demand_that_moves_within_its_noise_is_smoothed_and_a_step_is_followed():
    def after(rate):
        before = 20.0
        for _ in range(4):
            before = offered(
                before, [spill.demands.add_up((flow(rate),))],
                unseen_ratio=0.0, policy=POLICY, elapsed_s=0.5,
            )  # fmt: skip
        return before

    assert after(22.0) < 20.3
    assert after(40.0) > 33.0


def test_no_demand_at_all_is_no_reason_to_spill():
    shares = once(reading(flows=(flow(0.0),)), STATIC)
    assert (shares[0].demand, shares[0].spill) == (0.0, 0.0)
    state, found = run(reading(flows=(flow(0.0),)), STATIC)
    assert (state.demand, found[-1]) == (0.0, 0.0)


# Capacity.


def test_an_unproven_capacity_does_not_spill_before_something_presses():
    newcomer = flow(25.0, requests=1.0)
    shares = once(reading(flows=(newcomer,), level=Level.HEALTHY), STATIC)
    assert shares[0].spill == 0.0
    assert shares[0].reason.rule == "capacity_unproven"
    shares = once(reading(flows=(newcomer,)), STATIC)
    assert shares[0].spill > 0.0


@pytest.mark.parametrize("available", [0.1, 40.0, 80.0, 159.0])
def test_faults_take_their_part_of_the_capacity_away(available):
    first, _ = once(reading(available_slots=available, flows=(flow(25.0),), running=0.0), STATIC)
    assert isclose(first.capacity, available / 8.0)


def test_a_tier_without_available_slots_passes_everything_on_at_once_and_back_again_step_by_step():
    full = reading(flows=(flow(15.0),))
    state, _ = run(full, STATIC)
    gone = replace(full, available_slots=0.0)
    state, shares, again_at = spill.step(state, (gone, STATIC), POLICY, 60.0)
    assert (shares[0].share, shares[1].share) == (0.0, 1.0)
    assert shares[0].reason.rule == "tier_unavailable"
    assert again_at is None
    state, shares, again_at = spill.step(state, (full, STATIC), POLICY, 61.0)
    assert isclose(shares[0].spill, 1.0 - POLICY.fall_per_s)
    assert again_at == 61.0 + POLICY.step_s
    _, found = run(full, STATIC, state=state, start=61.5)
    assert found[-1] == 0.0


def test_the_queue_beyond_the_free_slots_lowers_the_believed_capacity():
    def spilled(running, waiting):
        first, _ = once(reading(flows=(flow(25.0),), running=running, waiting=waiting), STATIC)
        return first.spill

    # One instance queues while the others have room: weights deal with that.
    assert spilled(130.0, 20.0) == spilled(130.0, 0.0)
    assert spilled(160.0, 20.0) > spilled(160.0, 0.0)
    most = POLICY.queue_trim
    assert isclose(spilled(160.0, 999.0), 1.0 - 0.94 * 20.0 * (1.0 - most) / 25.0)


def test_slots_that_the_cache_cannot_hold_are_learned_while_a_long_queue_waits():
    half = reading(flows=(flow(15.0),), running=80.0, waiting=60.0)
    state, found = run(half, STATIC, seconds=120.0)
    assert state.tiers[0].fill_ratio == pytest.approx(0.5, abs=0.01)
    assert found[-1] >= 1.0 - 0.94 * 10.0 / 15.0 - 0.01
    # Forgotten slowly without a queue, at once when more than that runs.
    easy = replace(half, running=60.0, waiting=0.0)
    state, _ = run(easy, STATIC, state=state, start=120.0, seconds=600.0)
    assert 0.7 < state.tiers[0].fill_ratio < 0.95
    state, _ = run(
        replace(half, running=158.0, waiting=0.0), STATIC, state=state, start=720.0, seconds=1.0
    )
    assert state.tiers[0].fill_ratio > 0.98


def test_a_stuck_engine_does_not_unlearn_all_slots():
    state, _ = run(reading(flows=(flow(15.0),), running=0.0, waiting=99.0), STATIC, seconds=900.0)
    assert state.tiers[0].fill_ratio == 0.1


# Limits of a move.


def test_a_share_rises_and_falls_no_faster_than_allowed_and_comes_back_to_exactly_zero():
    quiet, busy = reading(flows=(flow(5.0),)), reading(flows=(flow(100.0),))
    state, _ = run(quiet, STATIC)
    state, up = run(busy, STATIC, state=state, start=60.0)
    _, down = run(quiet, STATIC, state=state, start=120.0)
    assert max(b - a for a, b in pairwise(up)) <= POLICY.rise_per_s * 0.5 + 1e-9
    assert max(a - b for a, b in pairwise(down)) <= POLICY.fall_per_s * 0.5 + 1e-9
    assert up[-1] > 0.8
    assert down[-1] == 0.0


def test_lost_capacity_is_passed_on_at_once():
    full = reading(flows=(flow(18.0),))
    state, _ = run(full, STATIC)
    _, shares, again_at = spill.step(
        state, (replace(full, available_slots=80.0, running=70.0), STATIC), POLICY, 59.6
    )
    assert isclose(shares[0].spill, 1.0 - 0.94 * 10.0 / 18.0)
    assert again_at is None


def test_small_moves_are_not_given_out():
    state, _ = run(reading(flows=(flow(25.0),)), STATIC)
    before = state.tiers[0].published
    state, shares, _ = spill.step(state, (reading(flows=(flow(25.2),)), STATIC), POLICY, 60.0)
    assert shares[0].spill == before
    assert state.tiers[0].spill != before


def test_a_critical_tier_passes_on_a_minimum():
    shares = once(reading(flows=(flow(10.0),), level=Level.CRITICAL), STATIC)
    assert shares[0].spill == POLICY.minimum_above_critical
    assert shares[0].reason.rule == "critical_minimum"


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        pytest.param(Limit(requests_per_second=5.0), 0.5, id="requests"),
        pytest.param(Limit(tokens_per_second=3500.0), 0.5, id="tokens"),
        pytest.param(Limit(requests_per_second=2.0, tokens_per_second=3500.0), 0.2, id="both"),
        pytest.param(Limit(requests_per_second=50.0), 1.0, id="far away"),
    ],
)
def test_a_tier_never_gets_more_than_its_own_limit(limit, kept):
    tier = reading(flows=(flow(10.0, tokens=700.0),), limit=limit)
    state, _ = run(replace(tier, limit=NO_LIMIT), STATIC)
    _, shares, _ = spill.step(state, (tier, STATIC), POLICY, 60.0)
    assert isclose(shares[0].share, kept)
    assert (shares[0].reason.rule == "tier_limit") is (kept < 1.0)


def test_a_limit_without_demand_is_left_to_the_proxies():
    tier = reading(flows=(flow(0.0),), limit=Limit(requests_per_second=5.0))
    assert once(tier, STATIC)[0].spill == 0.0


# Too little is known.


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"frozen": True}, id="frozen"),
        pytest.param({"fresh_ratio": 0.0, "running": None, "waiting": None}, id="nothing fresh"),
    ],
)
def test_a_tier_that_sends_nothing_holds_its_share_and_eases_back(change):
    busy = reading(flows=(flow(25.0),))
    state, found = run(busy, STATIC)
    silent = replace(busy, **change)
    state, held = run(silent, STATIC, state=state, start=60.0, seconds=120.0)
    assert set(held) == {found[-1]}
    assert state.tiers[0].reason.rule == "telemetry_hold"
    busier = reading(flows=(flow(40.0),))
    state, back = run(busier, STATIC, state=state, start=180.0)
    assert max(b - a for a, b in pairwise(back)) <= POLICY.ease_per_s * 0.5 + POLICY.publish_change
    assert not state.tiers[0].is_easing


def test_a_tier_of_which_nothing_was_ever_known_gets_everything():
    unknown = reading(pressure=None, running=None, waiting=None, flows=(blind(),))
    shares = once(unknown, STATIC)
    assert (shares[0].share, shares[0].demand) == (1.0, None)


def plant(pressure_at, **changes):
    """A tier without counters whose pressure answers the spill; return the spill over ten minutes."""
    state, found = spill.initial(2), [0.0]
    for number in range(1200):
        pressure = pressure_at(found[-1])
        level = Level.DEGRADED if pressure >= 0.8 else Level.HEALTHY
        tier = reading(pressure=pressure, level=level, flows=(blind(),), **changes)
        state, shares, _ = spill.step(state, (tier, STATIC), POLICY, number * 0.5)
        found.append(shares[0].spill)
    return state, found


@pytest.mark.parametrize(
    ("lag_s", "rule"), [(0.1, "pressure_pi"), (None, "pressure_pi"), (5.0, "pressure_aimd")]
)
def test_without_demand_the_pressure_is_led_to_its_setpoint(lag_s, rule):
    state, found = plant(lambda s: 1.5 * (1.0 - s), lag_s=lag_s)
    assert state.tiers[0].reason.rule == rule
    assert 1.5 * (1.0 - found[-1]) == pytest.approx(POLICY.pi_setpoint, abs=0.12)


@pytest.mark.parametrize("lag_s", [0.1, 5.0])
def test_without_demand_a_tier_that_is_no_longer_pressed_takes_everything_back(lag_s):
    state, _ = plant(lambda s: 1.5 * (1.0 - s), lag_s=lag_s)
    calm = reading(pressure=0.3, level=Level.HEALTHY, flows=(blind(),), lag_s=lag_s)
    state, found = run(calm, STATIC, state=state, start=600.0, seconds=300.0)
    assert found[-1] == 0.0
    assert state.tiers[0].integral == 0.0


def test_without_demand_a_healthy_tier_does_not_begin_to_spill():
    calm = reading(pressure=0.79, level=Level.HEALTHY, flows=(blind(),))
    assert once(calm, STATIC)[0].spill == 0.0


def test_the_integrator_does_not_wind_up():
    state, _ = plant(lambda _: 3.0)
    assert state.tiers[0].integral == 1.0


# Properties.

FEW = settings(max_examples=50, deadline=None)
LEVELS = st.sampled_from(list(Level))
FLOWS = st.lists(
    st.builds(
        flow,
        st.floats(0.0, 200.0),
        service_s=st.floats(0.5, 60.0),
        requests=st.floats(0.0, 1000.0),
        tokens=st.floats(0.0, 5000.0),
    ),
    max_size=2,
).map(tuple)
READINGS = st.builds(
    reading,
    available_slots=st.one_of(st.just(0.0), st.floats(0.01, 160.0)),
    fresh_ratio=st.sampled_from((0.0, 0.25, 0.5, 1.0)),
    running=st.one_of(st.none(), st.floats(0.0, 400.0)),
    waiting=st.one_of(st.none(), st.floats(0.0, 400.0)),
    pressure=st.one_of(st.none(), st.floats(0.0, 2.0)),
    flows=st.one_of(FLOWS, st.just((blind(),))),
    limit=st.builds(
        Limit,
        requests_per_second=st.one_of(st.none(), st.floats(0.1, 100.0)),
        tokens_per_second=st.one_of(st.none(), st.floats(1.0, 1e5)),
    ),
    level=LEVELS,
    frozen=st.booleans(),
    lag_s=st.one_of(st.none(), st.floats(0.0, 20.0)),
)
HISTORY = st.lists(st.tuples(st.floats(0.0, 60.0), READINGS, READINGS), max_size=4)


def live(history):
    state, now = spill.initial(3), 0.0
    for elapsed_s, first, second in history:
        now += elapsed_s
        state, shares, again_at = spill.step(state, (first, second, STATIC), POLICY, now)
        assert all(0.0 <= share.spill <= 1.0 for share in shares)
        assert all(0.0 <= share.share <= 1.0 for share in shares)
        assert isclose(sum(share.share for share in shares), 1.0)
        assert again_at is None or again_at > now
    return state, now


@pytest.mark.parametrize("available", [0.0, 5e-324, 1e-300, 1e-9])
def test_a_capacity_too_small_to_divide_by_is_none(available):
    pressed = reading(
        available_slots=available, flows=(flow(25.0),), level=Level.CRITICAL, waiting=9.0
    )

    first, last = once(pressed, STATIC)

    assert (first.share, first.spill) == (0.0, 1.0)
    assert last.share == 1.0


@given(HISTORY)
@FEW
def test_shares_are_shares_and_the_same_history_gives_the_same_bytes(history):
    assert live(history) == live(history)


def test_demand_that_fades_to_nothing_is_nothing_at_once():
    state, _ = run(reading(flows=(flow(4.0),)), STATIC)
    quiet = (reading(flows=(flow(0.0),)), STATIC)
    for _ in range(600):
        state, _, _ = spill.step(state, quiet, POLICY, (state.at or 0.0) + 1.0)
        assert spill.step(state, quiet, POLICY, state.at)[0] == state
    assert state.demand == 0.0


@given(HISTORY, st.floats(0.0, 60.0), READINGS, READINGS)
@FEW
def test_stepping_again_at_the_same_moment_changes_nothing(history, elapsed_s, first, second):
    state, now = live(history)
    readings = (first, second, STATIC)
    state, shares, again_at = spill.step(state, readings, POLICY, now + elapsed_s)
    assert spill.step(state, readings, POLICY, now + elapsed_s) == (state, shares, again_at)


@given(HISTORY, st.floats(0.0, 60.0), READINGS, READINGS, st.floats(0.01, 160.0))
@FEW
def test_more_available_capacity_never_lowers_the_share(history, elapsed_s, first, second, more):
    state, now = live(history)
    roomier = replace(first, available_slots=min(160.0, first.available_slots + more))
    _, less, _ = spill.step(state, (first, second, STATIC), POLICY, now + elapsed_s)
    _, shares, _ = spill.step(state, (roomier, second, STATIC), POLICY, now + elapsed_s)
    assert shares[0].share >= less[0].share - 1e-9
