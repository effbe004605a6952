"""When weights count as arrived, how long that took, and since when they have not."""

from __future__ import annotations

import pytest

from tests.istio.probe.test_seen import forward, route, wanted
from xds_server.istio.probe.follow import MOST_WAITING, Follow


def weights(share: int):
    return wanted(forward(share, 100 - share))


def seen(share: int):
    return (route(**{k: v for k, v in {"big": share, "small": 100 - share}.items() if v}),)


def following(share: int = 90) -> Follow:
    """A model whose sidecars have what is wanted, at time 0."""
    follow = Follow()
    follow.want(weights(share), 0.0)
    assert follow.look(seen(share), 0.0) is None, "nobody watched before"
    return follow


def test_nothing_is_known_before_the_first_look():
    follow = Follow()
    assert follow.unapplied_s(5.0) is None
    follow.want(weights(90), 5.0)
    assert follow.unapplied_s(9.0) is None
    follow.look(seen(50), 10.0)
    assert follow.unapplied_s(11.0) == 6.0


def test_nothing_is_wanted_before_the_first_plan():
    follow = Follow()
    assert follow.look(seen(50), 1.0) is None
    assert follow.unapplied_s(2.0) is None


def test_an_arrival_is_timed_from_the_push():
    follow = following()
    follow.want(weights(50), 10.0)
    follow.pushed(weights(50), 10.2)
    assert follow.unapplied_s(10.2) == pytest.approx(0.2)
    assert follow.look(seen(50), 10.3) == pytest.approx(0.1)
    assert follow.unapplied_s(60.0) == 0.0


def test_without_word_of_a_push_an_arrival_is_timed_from_the_decision():
    follow = following()
    follow.want(weights(50), 10.0)
    assert follow.look(seen(50), 10.3) == pytest.approx(0.3)


def test_the_same_weights_again_change_nothing():
    follow = following()
    follow.want(weights(90), 10.0)
    assert follow.unapplied_s(11.0) == 0.0
    assert follow.look(seen(90), 12.0) is None


def test_weights_that_were_overtaken_are_not_waited_for():
    follow = following()
    for at, share in ((1.0, 80), (1.1, 70), (1.2, 60)):
        follow.want(weights(share), at)
    assert follow.look(seen(70), 1.3) == pytest.approx(0.2)
    assert follow.unapplied_s(1.5) == pytest.approx(0.3), "since the oldest that is not there"
    assert follow.look(seen(60), 1.6) == pytest.approx(0.4)
    assert follow.unapplied_s(2.0) == 0.0


def test_a_stream_of_changes_that_arrive_one_behind_is_no_delay():
    follow = following()
    worst = 0.0
    for step in range(40):
        now = 1.0 + step * 0.25
        follow.want(weights(step % 50), now)
        follow.look(seen((step - 1) % 50 if step else 90), now + 0.1)
        worst = max(worst, follow.unapplied_s(now + 0.24) or 0.0)
    assert worst < 0.5


def test_weights_that_go_back_to_what_sidecars_have_are_there_already():
    follow = following()
    follow.want(weights(50), 1.0)
    follow.want(weights(90), 1.1)
    assert follow.unapplied_s(5.0) == 0.0
    assert follow.look(seen(90), 1.2) is None


def test_weights_that_somebody_takes_away_count_from_then_and_are_not_timed():
    follow = following()
    assert follow.look(seen(10), 100.0) is None
    assert follow.unapplied_s(103.0) == 3.0
    assert follow.look(None, 104.0) is None
    assert follow.unapplied_s(104.0) == 4.0, "still the same trouble"
    assert follow.look(seen(90), 105.0) is None
    assert follow.unapplied_s(106.0) == 0.0


def test_who_is_blind_knows_nothing_and_times_nothing_of_that_time():
    follow = following()
    follow.want(weights(50), 1.0)
    follow.blind()
    assert follow.unapplied_s(2.0) is None
    follow.want(weights(40), 3.0)
    assert follow.look(seen(50), 4.0) is None
    assert follow.unapplied_s(4.0) == 1.0
    follow.want(weights(30), 5.0)
    assert follow.look(seen(30), 5.1) == pytest.approx(0.1)


def test_memory_is_bounded_and_the_first_delay_is_not_forgotten():
    follow = following()
    for step in range(10 * MOST_WAITING):
        follow.want(weights(step % 80), 1.0 + step)
    assert follow.unapplied_s(1000.0) == 999.0
    assert follow.newest is not None
    assert follow.look(seen((10 * MOST_WAITING - 1) % 80), 1000.0) is not None
    assert follow.unapplied_s(1001.0) == 0.0
