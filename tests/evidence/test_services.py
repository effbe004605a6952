"""What proxies may say on the two services, and what happens when they say it wrongly."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsResponse

from tests.fakes.proxy_reports import ATTEMPT, a_load, a_log, an_entry
from tests.fakes.waiting import PATIENCE_S, until
from xds_server.evidence import server as services
from xds_server.evidence.budget import Budget, Lag
from xds_server.evidence.proto import load_response, parse_load


async def code_of(call) -> grpc.StatusCode:
    return await asyncio.wait_for(call.code(), PATIENCE_S)


# Access logs.


async def test_a_log_stream_is_read_to_its_end(served):
    call = served.logs()
    await call.write(a_log(an_entry(8001), node="edge-1"))
    await call.write(a_log(an_entry(8002), an_entry(8003, cluster="chat/fallback")))
    await call.done_writing()
    assert StreamAccessLogsResponse.FromString(await call) == StreamAccessLogsResponse()
    assert served.entries == 3
    assert served.attempts() == {
        ("primary-0", "ok"): 1,
        ("primary-1", "ok"): 1,
        ("fallback-0", "ok"): 1,
    }
    assert served.server.streams == 0


async def test_a_proxy_says_who_it_is_before_it_logs_anything(served):
    call = served.logs()
    await call.write(a_log(node="edge-1"))
    await until(lambda: served.server.streams == 1)
    await call.write(a_log(an_entry()))
    await until(lambda: served.entries == 1)
    call.cancel()
    await until(lambda: served.server.streams == 0, "the stream is gone")


BAD_LOGS = [
    pytest.param(b"\xff\xff\xff", "bad_message", id="garbage"),
    pytest.param(b"GET / HTTP/1.1", "bad_message", id="another protocol"),
    pytest.param(a_log(an_entry()), "no_node", id="no identifier"),
    pytest.param(a_log(an_entry(), node="edge-1", log_name="theirs"), "log_name", id="another log"),
    pytest.param(a_log(an_entry(), node="stranger"), "unknown_node", id="a foreign node"),
    pytest.param(
        a_log(an_entry(x_served_model="m" * services.MAX_MESSAGE_BYTES), node="edge-1"),
        "oversize",
        id="oversize",
    ),
]


@pytest.mark.parametrize(("raw", "reason"), BAD_LOGS)
async def test_a_bad_log_stream_is_refused_and_counted_and_another_goes_on(
    served, monkeypatch, raw, reason
):
    monkeypatch.setattr(services, "KNOWN_WITHIN_S", 0.05)
    good, bad = served.logs(), served.logs()
    await good.write(a_log(an_entry(), node="edge-1"))
    await until(lambda: served.entries == 1)
    await bad.write(raw)
    assert await code_of(bad) is grpc.StatusCode.INVALID_ARGUMENT
    assert served.refused(reason) == 1
    assert served.entries == 1, "nothing of it was used"
    await good.write(a_log(an_entry()))
    await until(lambda: served.entries == 2)
    good.cancel()


async def test_more_streams_than_can_be_served_are_refused(served, monkeypatch):
    monkeypatch.setattr(services, "MAX_STREAMS", 1)
    call = served.logs()
    await call.write(a_log(node="edge-1"))
    await until(lambda: served.server.streams == 1)
    assert await code_of(served.logs()) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await code_of(served.loads()) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.refused("streams") == 2
    call.cancel()


async def test_many_refusals_are_counted_each_and_logged_once_a_second(served, capsys):
    for _ in range(5):
        call = served.logs()
        await call.write(b"\xff")
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert served.refused("bad_message") == 5
    assert capsys.readouterr().out.count("evidence_refused") == 1


async def test_a_stream_that_turns_bad_keeps_what_it_said_before(served):
    call = served.logs()
    await call.write(a_log(an_entry(), node="edge-1"))
    await until(lambda: served.entries == 1)
    await call.write(b"\x0a\xff")
    assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert served.attempts() == {("primary-0", "ok"): 1}


async def test_a_proxy_whose_logs_come_before_its_configuration_stream_is_waited_for(served):
    call = served.logs()
    await call.write(a_log(an_entry(), node="edge-9"))
    await until(lambda: served.server.streams == 1)
    served.known.add("edge-9")
    await until(lambda: served.entries == 1, "its first entry")
    assert served.refused("unknown_node") == 0
    call.cancel()


async def test_logs_of_other_kinds_are_counted_and_left_alone(served):
    message = StreamAccessLogsMessage.FromString(a_log(an_entry(kind=0), an_entry(), node="edge-1"))
    tcp = StreamAccessLogsMessage()
    tcp.tcp_logs.log_entry.add().common_properties.route_name = "chat"
    call = served.logs()
    await call.write(message.SerializeToString())
    await call.write(tcp.SerializeToString())
    await call.done_writing()
    await call
    assert served.entries == 1
    assert served.refused("kind") == 2


async def test_a_flood_of_logs_is_slowed_and_disturbs_nobody(served):
    served.evidence(entries_per_second=2000.0)
    message = a_log(*(an_entry(8001) for _ in range(90)))
    call = served.logs()
    await call.write(a_log(node="edge-1"))
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def flood():
        while True:
            await call.write(message)

    flooding = asyncio.create_task(flood(), name="flood")
    worst_s = 0.0
    while loop.time() < started + 3.0:
        before = loop.time()
        await asyncio.sleep(0.005)
        worst_s = max(worst_s, loop.time() - before - 0.005)
    flooding.cancel()
    read = served.entries
    spent_s = loop.time() - started
    call.cancel()
    # A burst of one second, then the rate; messages cost ten entries each.
    assert read <= 2000.0 * (spent_s + 1.0) + 100
    assert read > 1000.0, "but it is read"
    assert served.tally.count("fleet_evidence_waits_total") > 0
    assert worst_s < 1.0, f"the loop was held up for {worst_s:.2f} s"


async def test_what_comes_late_is_counted_but_is_no_evidence(served):
    def failures(age_s):
        entries = [an_entry(8001, kind=ATTEMPT, status=500) for _ in range(3)]
        for each in entries:
            each.common_properties.start_time.FromNanoseconds(int((time.time() - age_s) * 1e9))
        return a_log(*entries)

    call = served.logs()
    await call.write(a_log(node="edge-1"))
    await call.write(failures(1000.0))
    await until(lambda: served.entries == 3)
    assert len(served.verdicts) == 1, "whatever the proxy's clock says: it is the first"
    await call.write(failures(1020.0))
    await until(lambda: served.entries == 6)
    assert len(served.verdicts) == 1
    assert served.tally.count("fleet_evidence_stale_total") == 3
    assert served.attempts() == {("primary-0", "error"): 6}
    call.cancel()


# Load reports.


async def read(call) -> LoadStatsResponse:
    return LoadStatsResponse.FromString(await asyncio.wait_for(call.read(), PATIENCE_S))


async def test_a_proxy_is_asked_for_the_load_of_the_tiers_and_reports_it(served):
    call = served.loads()
    await call.write(a_load(node="edge-1"))
    asked = await read(call)
    assert list(asked.clusters) == ["chat/fallback", "chat/primary"]
    assert asked.report_endpoint_granularity
    assert asked.load_reporting_interval.ToTimedelta().total_seconds() == 1.0
    await call.write(a_load((8001, 5, 3, 1, 1), (8002, 2, 2, 0, 0)))
    await until(lambda: served.tally.count("fleet_load_reports_total") == 1)
    counted = {
        key[2]: count
        for (name, key), count in served.tally.counts.items()
        if name == "fleet_load_reported_attempts_total"
    }
    assert counted == {"issued": 7, "succeeded": 5, "failed": 1}
    assert served.intake.in_progress() == {"primary-0": 1, "primary-1": 0}
    call.cancel()
    await until(lambda: served.intake.in_progress() == {}, "nothing of a proxy that left")


async def test_requests_in_progress_are_those_of_all_proxies_at_their_last_report(served):
    calls = []
    for name, running in (("edge-1", 3), ("edge-2", 4)):
        call = served.loads()
        calls.append(call)
        await call.write(a_load(node=name))
        await read(call)
        await call.write(a_load((8001, 0, 0, 0, 9)))
        await call.write(a_load((8001, 0, 0, 0, running)))
    await until(lambda: served.intake.in_progress() == {"primary-0": 7})
    for call in calls:
        call.cancel()


async def test_another_topology_is_asked_for_at_the_next_report(served):
    call = served.loads()
    await call.write(a_load(node="edge-1"))
    await read(call)
    served.clusters = frozenset({"chat/primary"})
    await call.write(a_load())
    assert list((await read(call)).clusters) == ["chat/primary"]
    call.cancel()


async def test_with_many_proxies_each_reports_less_often(served, monkeypatch):
    monkeypatch.setattr(services, "LOADS_PER_S", 20.0)
    calls, intervals = [], []
    for _ in range(9):
        call = served.loads()
        calls.append(call)
        await call.write(a_load(node="edge-1"))
        intervals.append((await read(call)).load_reporting_interval.ToTimedelta().total_seconds())
    assert intervals == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 8.0]
    for call in calls:
        call.cancel()
    await until(lambda: served.server.streams == 0)


async def test_long_reports_are_asked_for_less_often(served, monkeypatch):
    monkeypatch.setattr(services, "LOADS_PER_S", 20.0)
    monkeypatch.setattr(services, "FORGETS", 1.0)
    call = served.loads()
    await call.write(a_load(node="edge-1"))
    await read(call)
    await call.write(a_load(*((8001, 1, 1, 0, 0) for _ in range(25))))
    assert (await read(call)).load_reporting_interval.ToTimedelta().total_seconds() == 2.0
    call.cancel()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"\xff\xff", "bad_message", id="garbage"),
        pytest.param(a_load((8001, 1, 1, 0, 0)), "no_node", id="no node"),
        pytest.param(a_load(node="stranger"), "unknown_node", id="a foreign node"),
    ],
)
async def test_a_bad_load_stream_is_refused_and_counted_and_another_goes_on(
    served, monkeypatch, raw, reason
):
    monkeypatch.setattr(services, "KNOWN_WITHIN_S", 0.05)
    good, bad = served.loads(), served.loads()
    await good.write(a_load(node="edge-1"))
    await read(good)
    await bad.write(raw)
    assert await code_of(bad) is grpc.StatusCode.INVALID_ARGUMENT
    assert served.refused(reason) == 1
    await good.write(a_load((8001, 1, 1, 0, 0)))
    await until(lambda: served.tally.count("fleet_load_reports_total") == 1)
    good.cancel()


async def test_what_is_not_of_this_fleet_is_counted_and_forgotten(served):
    call = served.loads()
    await call.write(a_load(node="edge-1"))
    await read(call)
    await call.write(a_load((8001, 1, 1, 0, 0), cluster="theirs"))
    await call.write(a_load((9999, 1, 1, 0, 1)))
    await until(lambda: served.tally.count("fleet_load_reports_total") == 2)
    assert served.refused("unknown_cluster") == 1
    assert served.refused("unknown_endpoint") == 1
    assert served.intake.in_progress() == {}
    call.cancel()


def test_what_responses_reported_about_engines_is_there_for_whoever_needs_it():
    raw = a_load((8001, 2, 2, 0, 0), metric=("named_metrics.kv_cache_usage_perc", 1.2, 2))
    (endpoint,) = parse_load(raw).endpoints
    assert endpoint.metrics == {"named_metrics.kv_cache_usage_perc": (1.2, 2)}


def test_an_address_that_is_no_socket_is_passed_over():
    assert list(parse_load(a_load((0, 1, 1, 0, 0))).endpoints) == []


def test_equal_questions_are_equal_bytes():
    one = load_response(["b", "a"], interval_s=0.5)
    assert one == load_response(["a", "b"], interval_s=0.5)


# How much, and how late.


def test_the_budget_lets_a_burst_of_one_second_through_and_then_its_rate():
    now = 0.0
    budget = Budget(lambda: now)
    assert budget.spend(990, per_s=1000.0) == 0.0
    assert budget.spend(490, per_s=1000.0) == 0.5
    now = 1.5
    assert budget.spend(990, per_s=1000.0) == 0.0
    now = 100.0
    assert budget.spend(90, per_s=1000.0) == 0.0


def test_a_stream_is_late_against_its_own_earliest_message():
    lag = Lag()
    assert not lag.is_stale(None, now_unix_s=0.0)
    assert not lag.is_stale(5000.0, now_unix_s=1000.0)  # its clock is ahead
    assert not lag.is_stale(5010.0, now_unix_s=1014.0)
    assert lag.is_stale(5020.0, now_unix_s=1026.0)
    assert not lag.is_stale(5030.0, now_unix_s=1030.0)
