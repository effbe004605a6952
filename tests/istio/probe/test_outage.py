"""What is told of a connection that comes and goes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.istio.probe.outage import AGAIN_S, MOST_LOSSES, MOST_REASONS, TELL_S, Outage


def there(at: float = 0.0) -> Outage:
    outage = Outage()
    outage.there()
    assert not outage.is_over(at)
    return outage


def test_what_was_never_there_is_told_at_once_and_once():
    outage = Outage()
    assert outage.lost("refused", 0.0)
    assert not outage.lost("refused", 100.0)
    outage.there()
    assert outage.is_over(101.0)
    assert not outage.is_over(102.0)


def test_a_connection_that_istiod_ends_now_and_then_is_nothing_to_tell():
    outage = there()
    for turn in range(100):
        assert not outage.lost("max_age", turn * 1800.0)
        assert not outage.lost("refused", turn * 1800.0 + TELL_S - 0.1)
        outage.there()
        assert not outage.is_over(turn * 1800.0 + 5)


def test_an_outage_is_told_when_it_lasts_and_its_end_too():
    outage = there()
    assert not outage.lost("the stream broke", 10.0)
    assert outage.lost("refused", 10.0 + TELL_S)
    outage.there()
    assert outage.is_over(60.0)


def test_connections_that_are_lost_again_and_again_are_told_until_one_stays():
    outage = there()
    for turn in range(20):
        assert outage.lost("ended", turn * 4.0) == (turn == MOST_LOSSES - 1)
        outage.there()
        assert not outage.is_over(turn * 4.0 + 3)
    last = 19 * 4.0
    assert not outage.is_over(last + AGAIN_S - 4 * MOST_LOSSES)
    assert outage.is_over(last + AGAIN_S)


def test_reasons_that_differ_in_numbers_only_are_one_and_there_is_an_end_to_the_others():
    outage = Outage()
    assert outage.lost("127.0.0.1:4711: refused after 12 ms", 0.0)
    assert not outage.lost("127.0.0.1:4712: refused after 7 ms", 1.0)
    told = sum(outage.lost(chr(97 + index) * 3, float(index)) for index in range(20))
    assert told == MOST_REASONS - 1


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["lost", "there", "wait"]), st.floats(0.1, 30)), max_size=60
    )
)
def test_whatever_comes_every_end_that_is_told_had_a_beginning_and_both_are_few(steps):
    outage, now, is_told, ends = Outage(), 0.0, False, 0
    for step, by in steps:
        now += by
        if step == "lost":
            is_told = outage.lost("gone", now) or is_told
        elif step == "there":
            outage.there()
        if outage.is_over(now):
            assert is_told
            is_told, ends = False, ends + 1
    assert ends <= 1 + now / TELL_S
