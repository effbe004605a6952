"""What proxies saw: how attempts ended, windows, percentiles, and when failures are enough."""

from __future__ import annotations

import random
from collections import Counter
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.core.evidence import (
    FAILURES,
    GROWTH,
    IN_ROW,
    RATE,
    Accrual,
    Outcome,
    Times,
    Window,
    bucket,
    outcome,
    percentile,
)
from xds_server.core.policy import EvidencePolicy
from xds_server.core.requests import RequestWindow

POLICY = EvidencePolicy()
OK, ERROR, REJECTED = Outcome.OK, Outcome.ERROR, Outcome.REJECTED


@pytest.mark.parametrize(
    ("status", "flags", "expected"),
    [
        pytest.param(200, [], Outcome.OK, id="ok"),
        pytest.param(304, [], Outcome.OK, id="not modified"),
        pytest.param(400, [], Outcome.CLIENT_ERROR, id="bad request"),
        pytest.param(404, [], Outcome.CLIENT_ERROR, id="not found"),
        pytest.param(429, [], Outcome.REJECTED, id="an engine's limit"),
        pytest.param(429, ["rate_limited"], Outcome.REJECTED, id="a limiter"),
        pytest.param(503, [], Outcome.REJECTED, id="an engine's full queue"),
        pytest.param(500, [], Outcome.ERROR, id="500"),
        pytest.param(502, [], Outcome.ERROR, id="a gateway before the engine"),
        pytest.param(0, [], Outcome.RESET, id="no answer and no word why"),
        pytest.param(0, ["upstream_request_timeout"], Outcome.TIMEOUT, id="header timeout"),
        pytest.param(504, ["upstream_request_timeout"], Outcome.TIMEOUT, id="its 504"),
        pytest.param(0, ["upstream_connection_failure"], Outcome.CONNECT, id="refused"),
        pytest.param(503, ["upstream_connection_failure"], Outcome.CONNECT, id="its 503"),
        pytest.param(0, ["upstream_connection_termination"], Outcome.RESET, id="closed"),
        pytest.param(503, ["upstream_remote_reset"], Outcome.RESET, id="reset"),
        pytest.param(0, ["upstream_protocol_error"], Outcome.RESET, id="not HTTP"),
        pytest.param(
            200, ["upstream_connection_termination"], Outcome.BROKEN, id="a stream that was cut"
        ),
        pytest.param(200, ["upstream_remote_reset"], Outcome.BROKEN, id="a stream that was reset"),
        pytest.param(200, ["stream_idle_timeout"], Outcome.BROKEN, id="a stream that fell silent"),
        pytest.param(
            200, ["downstream_connection_termination"], Outcome.ABORTED, id="the client left"
        ),
        pytest.param(0, ["downstream_remote_reset"], Outcome.ABORTED, id="it left before headers"),
        pytest.param(
            200,
            ["downstream_connection_termination", "upstream_remote_reset"],
            Outcome.ABORTED,
            id="it left, and the rest followed",
        ),
        pytest.param(200, ["fault_injected"], Outcome.OK, id="a flag that says nothing"),
    ],
)
def test_how_an_attempt_ended(status, flags, expected):
    assert outcome(status, frozenset(flags)) is expected


def test_back_pressure_and_aborts_are_no_failures():
    assert not FAILURES & {OK, REJECTED, Outcome.ABORTED, Outcome.CLIENT_ERROR}


@given(st.lists(st.floats(0.0006, 1700.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_percentile_is_off_by_half_a_bucket_at_most(times, share):
    counts = Counter(bucket(each) for each in times)
    exact = sorted(times)[max(1, -int(-share * len(times) // 1)) - 1]
    found = percentile(counts, share)
    assert found is not None
    assert exact / GROWTH**0.51 <= found <= exact * GROWTH**0.51


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 1e9, float("inf")])
def test_times_out_of_range_fall_into_the_outer_buckets(seconds):
    found = percentile({bucket(seconds): 1}, 0.5)
    assert found is not None
    assert 0.0004 < found < 1900.0


def test_percentiles_of_nothing_are_unknown():
    assert Times.of({}) == (None, None, None)
    assert Window(10.0).summary(0.0).latency == (None, None, None)


def test_percentiles_are_those_of_the_times():
    window = Window(10.0)
    times = [0.001 * (number + 1) for number in range(1000)]
    for each in times:
        window.add(1.0, OK, latency_s=each, first_byte_s=each / 10)
    summary = window.summary(1.0)
    cuts = quantiles(times, n=100)
    assert summary.latency.p50 == pytest.approx(cuts[49], rel=0.03)
    assert summary.latency.p95 == pytest.approx(cuts[94], rel=0.03)
    assert summary.latency.p99 == pytest.approx(cuts[98], rel=0.03)
    assert summary.first_byte.p50 == pytest.approx(cuts[49] / 10, rel=0.03)
    assert summary.attempts == 1000


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from(list(Outcome))), max_size=80))
def test_a_window_holds_what_ended_in_its_span_to_a_slice(steps):
    span_s = 10.0
    window = Window(span_s)
    now, ended = 0.0, []
    for gap_s, each in steps:
        now += gap_s
        window.add(now, each)
        ended.append((now, each))
    surely = Counter(each for at, each in ended if at > now - span_s)
    maybe = Counter(each for at, each in ended if at > now - 1.1 * span_s)
    found = window.counts(now)
    assert surely <= found <= maybe
    assert not window.counts(now + 2.5 * span_s)
    assert len(window._slots) == 0, "and keeps nothing of it"


def test_a_clock_that_steps_back_loses_nothing():
    window = Window(10.0)
    window.add(100.0, OK)
    window.add(99.0, OK)
    assert window.counts(99.0)[OK] == 2


def test_a_window_without_a_pause_keeps_a_bounded_number_of_slices():
    window = Window(10.0)
    for step in range(10_000):
        window.add(step * 0.01, OK, latency_s=0.1)
    assert len(window._slots) <= 12
    assert 1000 <= window.counts(99.99)[OK] <= 1100


def test_a_summary_tells_failures_from_the_rest():
    window = Window(10.0)
    for each in (OK, OK, ERROR, REJECTED, Outcome.TIMEOUT):
        window.add(1.0, each)
    summary = window.summary(1.0)
    assert summary.outcomes == {OK: 2, ERROR: 1, REJECTED: 1, Outcome.TIMEOUT: 1}
    assert (summary.attempts, summary.failures) == (5, 2)


def accrual(**changes):
    return Accrual(EvidencePolicy(**changes), consecutive=3)


def feed(one, *outcomes, now=1.0):
    return [one.add(now, each) for each in outcomes]


@pytest.mark.parametrize(
    ("outcomes", "verdicts"),
    [
        pytest.param([ERROR] * 3, [False, False, True], id="three in a row"),
        pytest.param([ERROR, ERROR, OK, ERROR], [False] * 4, id="a success ends the row"),
        pytest.param([ERROR, ERROR, Outcome.CLIENT_ERROR, ERROR], [False] * 4, id="so does a 4xx"),
        pytest.param(
            [ERROR, REJECTED, ERROR, REJECTED, ERROR],
            [False] * 4 + [True],
            id="back-pressure neither adds to it nor ends it",
        ),
        pytest.param(
            [ERROR, Outcome.ABORTED, ERROR, Outcome.ABORTED, ERROR],
            [False] * 4 + [True],
            id="nor does a client that leaves",
        ),
        pytest.param([REJECTED] * 50, [False] * 50, id="back-pressure is never a fault"),
        pytest.param([Outcome.ABORTED] * 50, [False] * 50, id="nor are aborts"),
        pytest.param(
            [Outcome.TIMEOUT, Outcome.CONNECT, Outcome.BROKEN], [False, False, True], id="any kind"
        ),
        pytest.param([ERROR] * 6, [False, False, True] * 2, id="it starts from nothing again"),
    ],
)
def test_failures_in_a_row(outcomes, verdicts):
    assert [each is not None for each in feed(accrual(), *outcomes)] == verdicts


def test_a_row_says_what_it_was_made_of():
    verdict = feed(accrual(), Outcome.TIMEOUT, ERROR, ERROR)[-1]
    assert verdict == (IN_ROW, "3 in a row: 2 error, 1 timeout")


def test_under_heavy_traffic_a_longer_row_is_needed():
    one = accrual()
    feed(one, *[OK] * 1000)
    assert not any(feed(one, *[ERROR] * 20))
    assert any(feed(one, ERROR))


@pytest.mark.parametrize(
    ("per_s", "failing", "minutes", "verdicts"),
    [
        pytest.param(30.0, 0.05, 10.0, 0, id="5 % of 30/s is chance"),
        pytest.param(300.0, 0.10, 5.0, 0, id="10 % of 300/s is chance"),
        pytest.param(300.0, 1.0, 0.005, 1, id="all of 300/s are seen in a fraction of a second"),
        pytest.param(0.5, 1.0, 0.1, 1, id="all of 0.5/s are seen after three"),
    ],
)
def test_chance_takes_nobody_out(per_s, failing, minutes, verdicts):
    chance = random.Random(7)
    one, found, now = accrual(), 0, 0.0
    feed(one, *[OK] * int(10 * per_s))
    while now < 60.0 * minutes:
        now += 1.0 / per_s
        ended = ERROR if chance.random() < failing else OK
        found += one.add(now, ended) is not None
    assert min(found, 1) == verdicts


def test_half_of_enough_attempts_is_a_rate():
    one = accrual()
    verdicts = feed(one, *[OK, ERROR] * 10)
    assert verdicts[:-1] == [None] * 19
    assert verdicts[-1] == (RATE, "10 of 20 in 10 s: 10 error")


@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param([OK, ERROR] * 9, id="too few"),
        pytest.param([OK, OK, ERROR] * 40, id="too rarely"),
        pytest.param(([OK, ERROR] + [REJECTED] * 8) * 9, id="back-pressure does not fill it up"),
    ],
)
def test_less_is_no_rate(outcomes):
    assert not any(feed(accrual(), *outcomes))


def test_old_attempts_do_not_count():
    one = accrual()
    assert not any(feed(one, *[OK, ERROR] * 9))
    assert not any(feed(one, OK, ERROR, now=30.0))


def test_it_knows_when_it_last_saw_each():
    one = accrual()
    one.add(3.0, OK)
    one.add(4.0, ERROR)
    one.add(5.0, REJECTED)
    assert (one.last_ok, one.last_failure) == (3.0, 4.0)


# Requests.


def test_ratios_of_requests():
    window = RequestWindow(60.0)
    assert window.ratios(0.0).degraded is None
    window.attempt(0.5)
    assert window.ratios(0.5).amplification is None
    for _ in range(6):
        window.attempt(1.0)
        window.add(1.0, degraded=False, template=None)
    for _ in range(2):
        window.attempt(1.0)
    window.add(1.0, degraded=True, template=None)
    window.add(1.0, degraded=True, template="sorry")
    ratios = window.ratios(2.0)
    assert ratios.requests == 8
    assert ratios.degraded == 0.25
    assert ratios.static == {"sorry": 0.125}
    assert ratios.amplification == 9 / 8
    assert window.ratios(200.0).requests == 0


@pytest.mark.parametrize("seconds", [1, 5, 30, 60, 300])
def test_tokens_per_second_are_right_from_the_start_on(seconds):
    window = RequestWindow(60.0)
    for tick in range(10 * seconds):
        window.add(100 + tick / 10, degraded=False, template=None, tokens=50.0)
    found = window.ratios(100 + seconds).tokens_per_second
    least = 0.19 if seconds < 5 else 0.95  # Never over less than a slice of five seconds.
    assert least * 500 <= found <= 1.05 * 500


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 4), st.booleans()), max_size=60))
def test_ratios_are_those_of_the_requests_in_the_span(steps):
    window = RequestWindow(60.0)
    now, ended = 0.0, []
    for gap_s, attempts, is_static in steps:
        now += gap_s
        window.add(now, degraded=is_static, template="t" if is_static else None)
        for _ in range(attempts):
            window.attempt(now)
        ended.append((now, attempts, is_static))
    found = window.ratios(now)
    surely = [each for each in ended if each[0] > now - 60.0]
    maybe = [each for each in ended if each[0] > now - 66.0]
    assert len(surely) <= found.requests <= len(maybe)
    if found.requests:
        assert 0.0 <= found.degraded <= 1.0
        assert found.amplification * found.requests <= sum(each[1] for each in maybe) + 1e-6
