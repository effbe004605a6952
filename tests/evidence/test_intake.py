"""What entries mean: who answered, whose attempt it was, what it counts for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.evidence_bench import a_fleet
from tests.fakes.plans import a_model, a_static_tier, a_tier, a_topology
from tests.fakes.proxy_reports import ATTEMPT, a_log, an_entry
from xds_server.core.evidence import IN_ROW, Outcome
from xds_server.core.limits import Limit
from xds_server.core.model import RequestClass
from xds_server.evidence.intake import MAX_TEMPLATES
from xds_server.evidence.proto import parse_logs
from xds_server.fleet import Fleet
from xds_server.resources import names
from xds_server.resources.names import GATE_ROUTE


@pytest.fixture
def logged(bench):
    """Take entries in, at a time of one's choosing."""
    bench.now = 100.0

    def take(*entries, at=None):
        bench.now = bench.now if at is None else at
        bench.intake.take_logs(parse_logs(a_log(*entries)).entries)

    bench.take = take
    return bench


def failed(port=8001, **facts):
    return an_entry(port, kind=ATTEMPT, **{"status": 500, **facts})


def statically(**facts):
    """Answered by the static tier, at the end of the chain."""
    given = {"cluster": "chat/static", "served": "static", "x_model_downgraded": "true"}
    return an_entry(None, **given | facts)


CASES = [
    pytest.param(
        [an_entry()], {("chat", "", "primary", "ok"): 1}, {("primary-0", "ok"): 1}, id="answered"
    ),
    pytest.param(
        [an_entry(8001, kind=ATTEMPT, route=GATE_ROUTE), an_entry(None)],
        {("chat", "", "primary", "ok"): 1},
        {("primary-0", "ok"): 1},
        id="behind a gate the attempt says which endpoint it was",
    ),
    pytest.param(
        [failed(), an_entry(8003, cluster="chat/fallback", served="small", attempts=2)],
        {("chat", "", "fallback", "ok"): 1},
        {("primary-0", "error"): 1, ("fallback-0", "ok"): 1},
        id="after one failed attempt",
    ),
    pytest.param(
        [failed(), an_entry(status=500)],
        {("chat", "", "primary", "error"): 1},
        {("primary-0", "error"): 1},
        id="a failure that reached the client is no second one",
    ),
    pytest.param(
        [failed(8001), failed(8003, status=429), statically(attempts=3)],
        {("chat", "", "static", "ok"): 1},
        {("primary-0", "error"): 1, ("fallback-0", "rejected"): 1},
        id="static after both",
    ),
    pytest.param(
        [failed(), an_entry(8001, served="static", details="custom_response")],
        {("chat", "", "static", "ok"): 1},
        {("primary-0", "error"): 1},
        id="the last net's answer is no success of the engine before it",
    ),
    pytest.param(
        [an_entry(None, cluster="", status=429, attempts=0, served="", flags=["rate_limited"])],
        {("chat", "", "none", "limited"): 1},
        {},
        id="a limiter",
    ),
    pytest.param(
        [failed(status=429), an_entry(status=429)],
        {("chat", "", "primary", "rejected"): 1},
        {("primary-0", "rejected"): 1},
        id="an engine's own 429 that reached the client",
    ),
    pytest.param(
        [an_entry(status=400)],
        {("chat", "", "primary", "client_error"): 1},
        {("primary-0", "client_error"): 1},
        id="a bad request",
    ),
    pytest.param(
        [
            an_entry(
                flags=["downstream_connection_termination"], details="downstream_remote_disconnect"
            )
        ],
        {("chat", "", "primary", "aborted"): 1},
        {("primary-0", "aborted"): 1},
        id="a client that left",
    ),
    pytest.param(
        [
            failed(status=200, flags=["upstream_connection_termination"]),
            an_entry(flags=["upstream_connection_termination"], details="upstream_reset"),
        ],
        {("chat", "", "primary", "broken"): 1},
        {("primary-0", "broken"): 1},
        id="a stream that was cut after a 200",
    ),
    pytest.param(
        [an_entry(errored=True)],
        {("chat", "", "primary", "broken"): 1},
        {("primary-0", "broken"): 1},
        id="a stream that ended in an error event",
    ),
    pytest.param(
        [
            failed(status=200, flags=["upstream_remote_reset"]),
            an_entry(errored=True, flags=["upstream_remote_reset"], details="upstream_reset"),
        ],
        {("chat", "", "primary", "broken"): 1},
        {("primary-0", "broken"): 1},
        id="an error event and a cut are one failure",
    ),
    pytest.param(
        [
            an_entry(
                None, cluster="chat/primary", status=503, served="", attempts=1,
                flags=["no_healthy_upstream"], details="no_healthy_upstream",
            )
        ],
        {("chat", "", "primary", "rejected"): 1},
        {},
        id="nobody to ask",
    ),
    pytest.param(
        [failed(flags=["upstream_overflow"], status=503), statically(attempts=2)],
        {("chat", "", "static", "ok"): 1},
        {},
        id="a full tier asks nobody, whoever the attempt names",
    ),
    pytest.param(
        [an_entry(None, cluster="", status=429, attempts=0, served="", x_degrade_reason="class_shed")],
        {("chat", "", "none", "class_shed"): 1},
        {},
        id="a class that is not served",
    ),
    *(
        pytest.param(
            [an_entry(None, route=route, status=status, cluster="", served="", attempts=0)],
            {("", "", "none", ended): 1},
            {},
            id=f"answered by the proxy alone: {route or 'no route'}",
        )
        for route, status, ended in (
            ("", 404, "client_error"),
            (names.MODELS_ROUTE, 200, "ok"),
            (names.UNKNOWN_MODEL_ROUTE, 404, "client_error"),
            (names.NO_MODEL_ROUTE, 400, "client_error"),
            (names.UNCOUNTED_ROUTE, 400, "client_error"),
        )
    ),
    pytest.param(
        [failed(None, cluster="chat/static", status=503)], {}, {}, id="a static tier that says 503"
    ),
    pytest.param(
        [failed(status=431)], {}, {}, id="a client error in the log of attempts counts once"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "requests", "attempts"), CASES)
def test_what_entries_count_for(logged, entries, requests, attempts):
    logged.take(*entries)
    assert logged.requests() == requests
    assert logged.attempts() == attempts
    assert not [name for name, _ in logged.tally.counts if name == "fleet_evidence_refused_total"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        pytest.param(an_entry(9999), "unknown_endpoint", id="an endpoint"),
        pytest.param(an_entry(8001, host="10.6.6.6"), "unknown_endpoint", id="a host"),
        pytest.param(failed(9999), "unknown_endpoint", id="an endpoint that failed"),
        pytest.param(an_entry(route="theirs"), "unknown_route", id="a route"),
    ],
)
def test_what_is_not_of_this_fleet_is_counted_and_forgotten(logged, entry, reason):
    logged.take(entry)
    assert logged.refused(reason) == 1
    assert logged.attempts() == {}


@pytest.mark.parametrize("name", ["gate", "models", "uncounted", "model_missing", "static"])
def test_a_model_may_be_called_like_a_route_of_the_proxies_own(logged, name):
    model = a_model(name, tiers=[a_tier("primary", "big", [8001]), a_static_tier()])
    logged.fleet = Fleet(a_topology(model), logged.policy, 0.0)
    one = {"route": name, "cluster": f"{name}/primary"}
    logged.take(failed(status=431, **one), an_entry(status=431, **one), an_entry(**one))
    logged.take(an_entry(None, route=names.MODELS_ROUTE, cluster="", served="", attempts=0))
    assert logged.requests() == {
        (name, "", "primary", "client_error"): 1,
        (name, "", "primary", "ok"): 1,
        ("", "", "none", "ok"): 1,
    }
    assert logged.attempts() == {("primary-0", "client_error"): 1, ("primary-0", "ok"): 1}


def test_three_failures_in_a_row_over_all_proxies_are_told_once_a_second(logged):
    for number in range(12):
        logged.take(failed(), at=100.0 + 0.01 * number)
    assert [each.instance for each in logged.verdicts] == ["primary-0"]
    assert logged.verdicts[0].cause == IN_ROW
    assert logged.verdicts[0].detail == "3 in a row: 3 error"
    for number in range(3):
        logged.take(failed(), at=102.0 + 0.01 * number)
    assert len(logged.verdicts) == 2


def test_failures_of_different_instances_are_no_row(logged):
    for port in (8001, 8002, 8003, 8001, 8002, 8003):
        logged.take(failed(port))
    assert logged.verdicts == []


def gauges(bench, name):
    return {labels: value for found, labels, value in bench.intake.readings() if found == name}


def test_ratios_per_model_and_class(logged):
    for _ in range(5):
        logged.take(an_entry())
    for _ in range(3):
        logged.take(failed(), an_entry(8003, cluster="chat/fallback", served="small", attempts=2))
    for _ in range(2):
        logged.take(failed(), statically(attempts=2, x_static_template="sorry"))
    logged.take(an_entry(None, cluster="", status=429, attempts=0, served=""))
    assert gauges(logged, "fleet_degraded_request_ratio") == {("chat", ""): 0.5}
    assert gauges(logged, "fleet_static_answer_ratio") == {("chat", "", "sorry"): 0.2}
    amplification = gauges(logged, "fleet_retry_amplification_ratio")[("chat", "")]
    assert amplification == pytest.approx((5 + 3 * 2 + 2) / 10), "the static tier's own is none"


def test_amplification_counts_what_reached_an_engine_for_each_class(logged):
    topology = replace(a_fleet(), classes=(RequestClass(name="core"), RequestClass(name="rest")))
    logged.fleet = Fleet(topology, logged.policy, 0.0)
    refused = an_entry(
        None, kind=ATTEMPT, route="chat/core", status=429, cluster="chat/primary/gate"
    )
    for route, said in (("chat/core", "core"), ("chat/rest", "rest"), ("chat/rest", "invented")):
        logged.take(refused, statically(route=route, attempts=2))
        logged.take(
            an_entry(8001, kind=ATTEMPT, route=GATE_ROUTE, status=500, request_class=said),
            an_entry(8002, kind=ATTEMPT, route=GATE_ROUTE, request_class=said),
            an_entry(None, route=route, attempts=2),
        )
    found = gauges(logged, "fleet_retry_amplification_ratio")
    assert found == {("chat", "core"): 1.0, ("chat", "rest"): 0.5}


def test_latencies_of_a_tier(logged):
    for number in range(100):
        logged.take(an_entry(8001 + number % 2, latency_s=0.01 * (number + 1)))
    latency = gauges(logged, "fleet_attempt_latency_seconds")
    assert latency["chat", "primary", "0.5"] == pytest.approx(0.5, rel=0.03)
    assert latency["chat", "primary", "0.99"] == pytest.approx(0.99, rel=0.03)
    first = gauges(logged, "fleet_first_byte_seconds")
    assert first["chat", "primary", "0.5"] == pytest.approx(0.25, rel=0.03)
    one = logged.intake.instance("primary-0")
    assert one.outcomes == {Outcome.OK: 50}
    assert logged.intake.instance("fallback-0") is None
    logged.take(failed())
    assert gauges(logged, "fleet_attempt_failure_ratio")["chat", "primary"] == 1 / 101


def test_failed_and_aborted_attempts_say_nothing_about_latency(logged):
    logged.take(failed(), an_entry(flags=["downstream_remote_reset"], details="x"))
    assert gauges(logged, "fleet_attempt_latency_seconds") == {}


def test_routes_of_classes_are_told_apart_and_their_requests_handed_over_once(logged):
    topology = replace(a_fleet(), classes=(RequestClass(name="core"), RequestClass(name="rest")))
    logged.fleet = Fleet(topology, logged.policy, 0.0)
    logged.take(
        an_entry(route="chat/core"), an_entry(route="chat/core"), an_entry(route="chat/rest")
    )
    assert logged.requests() == {
        ("chat", "core", "primary", "ok"): 2,
        ("chat", "rest", "primary", "ok"): 1,
    }
    assert logged.intake.take_classes() == {"chat": {"core": 2, "rest": 1}}
    assert logged.intake.take_classes() == {}


def test_an_instance_that_is_waited_for_is_vouched_for_when_it_only_succeeds(logged):
    logged.take(an_entry(8001), an_entry(8002), failed(8002), at=100.0)
    waited = ["primary-0", "primary-1", "fallback-0", "gone"]
    logged.intake.vouch(waited, since=99.0)
    assert [(each.instance, each.is_failing) for each in logged.verdicts] == [("primary-0", False)]
    logged.intake.vouch(waited, since=100.5)
    assert len(logged.verdicts) == 1


def test_invented_templates_share_one_label(logged):
    for number in range(MAX_TEMPLATES + 5):
        logged.take(statically(x_static_template=f"t{number}"))
    logged.take(statically(x_static_template="t" * 65))
    labels = [key for name, key in logged.tally.counts if name == "fleet_static_answers_total"]
    assert len(labels) == MAX_TEMPLATES + 1
    assert logged.tally.count("fleet_static_answers_total", "chat", "", "other") == 6


def test_an_engine_that_is_called_like_the_static_answer_is_not_taken_for_it(logged):
    tiers = [a_tier("primary", "big", [8001]), a_tier("spare", "static", [8009]), a_static_tier()]
    logged.fleet = Fleet(a_topology(a_model(tiers=tiers)), logged.policy, 0.0)
    logged.take(an_entry(8009, cluster="chat/spare", served="static"), statically())
    assert logged.requests() == {("chat", "", "spare", "ok"): 1, ("chat", "", "static", "ok"): 1}


def test_instances_that_left_are_forgotten_and_new_ones_known(logged):
    logged.take(an_entry(8001), an_entry(8003, cluster="chat/fallback", served="small"))
    tiers = [a_tier("primary", "big", [8001]), a_tier("spare", "mid", [8009]), a_static_tier()]
    logged.fleet = Fleet(a_topology(a_model(tiers=tiers)), logged.policy, 0.0)
    logged.take(an_entry(8009, cluster="chat/spare", served="mid"))
    assert logged.intake.instance("primary-0") is not None
    assert logged.intake.instance("fallback-0") is None
    assert set(logged.intake.tiers()) == {("chat", "primary"), ("chat", "spare")}
    assert logged.requests()["chat", "", "spare", "ok"] == 1


def test_another_policy_starts_new_windows(logged):
    logged.take(an_entry())
    logged.evidence(window_s=5.0)
    logged.fleet = Fleet(a_fleet(), logged.policy, 0.0)
    logged.take(failed())
    assert logged.intake.instance("primary-0").outcomes == {Outcome.ERROR: 1}


def test_an_equal_policy_keeps_them(logged):
    logged.take(an_entry())
    logged.fleet = Fleet(a_fleet(), replace(logged.policy), 0.0)
    logged.take(failed())
    assert logged.intake.instance("primary-0").attempts == 2


def test_admitted_tokens_are_told_as_a_share_of_the_limit(bench):
    model = replace(a_model(), limit=Limit(tokens_per_second=100))
    bench.fleet = Fleet(a_topology(model), bench.policy, 0.0)
    bench.now = 100.0
    for second in range(20):
        bench.now = 100.0 + second
        entries = [
            an_entry(tokens="50"),
            an_entry(None, status=429, attempts=0, tokens="9000"),
            an_entry(tokens="many"),
            an_entry(),
        ]
        bench.intake.take_logs(parse_logs(a_log(*entries)).entries)
    load = dict(gauges(bench, "fleet_token_admission_load"))
    assert load == {("chat", ""): pytest.approx(0.5, rel=0.25)}


def test_without_a_limit_there_is_no_share_of_it(logged):
    logged.take(an_entry(tokens="50"))
    assert not gauges(logged, "fleet_token_admission_load")
