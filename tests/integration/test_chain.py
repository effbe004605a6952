"""The data plane alone: what a real Envoy does with our resources when engines fail."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.fakes.answer import CHAT, TEXT
from tests.fakes.chain import chain_lab
from tests.fakes.plans import BUSY
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.waiting import PATIENCE_S
from xds_server.core.model import StaticAnswer
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import FailurePolicy
from xds_server.resources.capability import Capability
from xds_server.resources.clusters import KEEP_ALIVE_S

pytestmark = pytest.mark.envoy

BIG, SMALL = "llama-3-70b", "llama-3-8b"
FIRST = (200, BIG, None, None)
FAILED_OVER = (200, SMALL, "true", "failover")
STATIC = (200, "static", "true", "failover")

with_chains = pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])


@with_chains
async def test_a_healthy_primary_answers_and_nothing_claims_a_downgrade(tmp_path, capability):
    async with chain_lab(tmp_path, capability=capability) as lab:
        assert (await lab.ask()).story == FIRST
        streamed = await lab.ask(stream=True)
        assert streamed.story == FIRST
        assert streamed.events[-1] == "[DONE]"
        await lab.assert_all_accepted()


@with_chains
@pytest.mark.parametrize("mode", ["500", "503", "429", "reset", "hang"])
async def test_a_failing_primary_is_answered_by_the_fallback(tmp_path, capability, mode):
    async with chain_lab(tmp_path, capability=capability) as lab:
        lab.big.mode = mode
        started = time.monotonic()
        plain = await lab.ask()
        assert plain.story == FAILED_OVER
        assert SMALL in plain.text
        if mode == "hang":
            assert 0.45 < time.monotonic() - started < 20, "the header time-out is 0.5 s"
        streamed = await lab.ask(stream=True)
        assert streamed.story == FAILED_OVER
        assert streamed.events[-1] == "[DONE]"
        assert await lab.ask_many(5) == {FAILED_OVER: 5}
        await lab.assert_all_accepted()


@with_chains
async def test_with_both_models_failing_the_static_tier_answers_plain_and_streamed(
    tmp_path, capability
):
    async with chain_lab(tmp_path, capability=capability) as lab:
        lab.big.mode = lab.small.mode = "500"
        for path, kind in ((CHAT, "chat.completion"), (TEXT, "text_completion")):
            for _ in range(3):  # by retries first, then because both are ejected
                plain = await lab.ask(path=path)
                assert plain.story == STATIC
                assert plain.headers["content-type"] == "application/json"
                document = json.loads(plain.text)
                assert document["object"] == kind
                assert BUSY in plain.text
                streamed = await lab.ask(path=path, stream=True)
                assert streamed.story == STATIC
                *chunks, done = streamed.events
                assert done == "[DONE]"
                assert BUSY in chunks[0]
                assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"
        await lab.assert_all_accepted()


@with_chains
async def test_who_forbids_a_fallback_and_how_often_it_was_tried_is_the_same_with_every_chain(
    tmp_path, capability
):
    strict = {"x-no-fallback": "true"}
    async with chain_lab(tmp_path, capability=capability) as lab:
        assert [(await lab.ask()).attempts, (await lab.ask(headers=strict)).attempts] == [1, 1]
        lab.big.mode = "429"
        assert (await lab.ask()).attempts == 2
        answer = await lab.ask(headers=strict)
        assert (answer.status, answer.reason, answer.attempts) == (429, "rate_limited", 1)
        lab.plan([0, 0, 1000])
        await lab.obeyed("static")
        lab.big.mode = "ok"
        assert (await lab.ask(headers=strict)).story == FIRST, "whatever the weights say"
        assert (await lab.ask()).attempts == 1
        await lab.assert_all_accepted()


@with_chains
async def test_a_refused_connection_is_answered_by_the_next_tier(tmp_path, capability):
    class Nobody(ScriptedEngine):
        @property
        def port(self):
            return 1  # tcpmux: nothing listens there

        @port.setter
        def port(self, value):
            pass

    tiers = [[Nobody(BIG)], [ScriptedEngine(SMALL)]]
    async with chain_lab(tmp_path, capability=capability, tiers=tiers) as lab:
        assert await lab.ask_many(4) == {FAILED_OVER: 4}


@with_chains
@pytest.mark.parametrize("health", [EndpointHealth.UNHEALTHY, EndpointHealth.DRAINING])
async def test_a_tier_without_a_usable_endpoint_is_skipped_at_once(tmp_path, capability, health):
    async with chain_lab(tmp_path, capability=capability) as lab:
        lab.plan(health={"primary-0": health})
        answer = await lab.obeyed(SMALL)
        assert answer.story == FAILED_OVER
        seen = lab.big.requests
        assert await lab.ask_many(5) == {FAILED_OVER: 5}
        assert lab.big.requests == seen
        lab.plan()
        await lab.obeyed(BIG)
        await lab.assert_all_accepted()


@with_chains
async def test_a_tier_without_endpoints_is_skipped_at_once(tmp_path, capability):
    async with chain_lab(tmp_path, capability=capability, tiers=[[], []]) as lab:
        assert await lab.ask_many(3) == {STATIC: 3}
        await lab.assert_all_accepted()


async def test_three_failures_in_a_row_eject_and_the_endpoint_comes_back(tmp_path):
    async with chain_lab(tmp_path) as lab:
        lab.big.mode = "500"
        await lab.ask_many(2)
        assert await lab.ejected("primary") == [False]
        await lab.ask()
        assert await lab.ejected("primary") == [True]
        assert lab.big.requests == 3
        lab.big.mode = "ok"
        assert await lab.ask_many(3) == {FAILED_OVER: 3}
        assert lab.big.requests == 3, "an ejected endpoint is left alone"
        # An EDS or RDS push keeps the ejection; only a CDS change would end it.
        lab.plan([900, 50, 50], weights={"primary-0": 7})
        await lab.envoy.until(lambda: has_weight(lab, 7), what="the new weight")
        assert await lab.ejected("primary") == [True]
        lab.plan()
        await lab.obeyed(BIG)


async def has_weight(lab, weight):
    return (await lab.envoy.clusters())["chat/primary"][0]["weight"] == weight


async def test_a_hung_engine_is_ejected_after_three_timeouts_and_costs_nothing_more(tmp_path):
    async with chain_lab(tmp_path) as lab:
        lab.big.mode = "hang"
        assert await lab.ask_at_once(3) == {FAILED_OVER: 3}
        assert await lab.ejected("primary") == [True]
        started = time.monotonic()
        assert await lab.ask_many(20) == {FAILED_OVER: 20}
        assert time.monotonic() - started < 20 * 0.5, "each waits for the header time-out"


async def test_429_moves_the_request_on_but_ejects_nobody(tmp_path):
    async with chain_lab(tmp_path) as lab:
        lab.big.mode = "429"
        assert await lab.ask_many(6) == {FAILED_OVER: 6}
        assert await lab.ejected("primary") == [False]


async def test_a_client_error_is_the_clients_and_is_not_retried(tmp_path):
    async with chain_lab(tmp_path) as lab:
        lab.big.mode = "400"
        assert (await lab.ask()).story == (400, BIG, None, None)
        assert lab.small.requests == 0


async def test_hundreds_of_simultaneous_failures_all_reach_the_fallback(tmp_path):
    """Envoy counts a chain's requests at its members, so a budget in percent of them is empty."""
    async with chain_lab(tmp_path, failures=FailurePolicy(header_timeout_s=20.0)) as lab:
        lab.big.mode = "reset"
        assert await lab.ask_at_once(200) == {FAILED_OVER: 200}
        assert await lab.envoy.stat("cluster.chat/primary/chain.upstream_rq_retry_overflow") == 0


@pytest.mark.parametrize(
    ("split", "rules", "story"),
    [
        ([0, 1000, 0], ["kv_pressure"], (200, SMALL, "true", "kv_pressure")),
        ([0, 0, 1000], ["kv_pressure", "tier_limit"], (200, "static", "true", "tier_limit")),
    ],
    ids=["to the fallback", "to the static tier"],
)
@with_chains
async def test_what_the_control_plane_moves_carries_its_reason(
    tmp_path, capability, split, rules, story
):
    async with chain_lab(tmp_path, capability=capability) as lab:
        lab.plan(split, rules=rules)
        await lab.obeyed(story[1])
        assert await lab.ask_many(3) == {story: 3}
        assert (await lab.ask(stream=True)).story == story
        await lab.assert_all_accepted()


async def test_failing_over_below_a_chosen_tier_is_called_failover(tmp_path):
    async with chain_lab(tmp_path, split=[0, 1000, 0]) as lab:
        lab.small.mode = "500"
        assert await lab.ask_many(5) == {STATIC: 5}
        assert lab.big.requests == 0, "a chain never walks up"


async def test_an_engines_own_headers_of_our_names_are_not_believed(tmp_path):
    lies = {"x-served-model": "gpt", "x-model-downgraded": "true", "x-degrade-reason": "lies"}
    engine = ScriptedEngine(BIG, headers=lies)
    async with chain_lab(tmp_path, tiers=[[engine], [ScriptedEngine(SMALL)]]) as lab:
        assert (await lab.ask()).story == FIRST


async def test_weights_split_requests_between_tiers_and_endpoints(tmp_path):
    tiers = [[ScriptedEngine(BIG), ScriptedEngine(BIG)], [ScriptedEngine(SMALL)]]
    async with chain_lab(tmp_path, tiers=tiers) as lab:
        lab.plan([500, 300, 200], weights={"primary-0": 3000, "primary-1": 1000})
        await lab.obeyed("static")
        one, two = lab.tiers[0]
        before = one.requests, two.requests
        counts = await lab.ask_many(300)
        served = {key[1]: count for key, count in counts.items()}
        assert served[BIG] == pytest.approx(150, abs=45)
        assert served[SMALL] == pytest.approx(90, abs=40)
        assert served["static"] == pytest.approx(60, abs=35)
        share = (one.requests - before[0]) / served[BIG]
        assert (one.requests + two.requests) - sum(before) == served[BIG]
        assert share == pytest.approx(0.75, abs=0.03), "round robin keeps the ratio exactly"


async def test_a_weight_change_is_obeyed_at_once_and_touches_no_cluster(tmp_path):
    async with chain_lab(tmp_path) as lab:
        await lab.ask()
        before = await lab.envoy.stats("cluster_manager.cluster_(added|modified|removed)")
        delays = []
        for turn in range(40):
            split, served = (([0, 1000, 0], SMALL), ([1000, 0, 0], BIG))[turn % 2]
            started = time.monotonic()
            lab.plan(split)
            while (await lab.ask()).served != served:
                assert time.monotonic() - started < PATIENCE_S
            delays.append(time.monotonic() - started)
        delays.sort()
        assert delays[len(delays) // 2] < 1.0, f"{delays}"
        after = await lab.envoy.stats("cluster_manager.cluster_(added|modified|removed)")
        assert after == before
        assert await lab.envoy.stat("listener_manager.listener_modified") == 0
        await lab.assert_all_accepted()


@pytest.mark.parametrize(
    "push",
    [
        {"split": [0, 1000, 0]},
        {"weights": {"primary-0": 1}},
        {"health": {"primary-0": EndpointHealth.DRAINING}},
        {"health": {"primary-0": EndpointHealth.UNHEALTHY}},
    ],
    ids=["tier weight", "endpoint weight", "draining", "unhealthy"],
)
async def test_a_running_stream_survives_every_push_and_the_header_timeout(tmp_path, push):
    engine = ScriptedEngine(BIG, chunks=12, pause_s=0.1)
    async with chain_lab(tmp_path, tiers=[[engine], [ScriptedEngine(SMALL)]]) as lab:
        running = asyncio.create_task(lab.ask(stream=True))
        await lab.envoy.until(lambda: arrived(engine), what="the request")
        lab.plan(**push)
        answer = await running
        assert answer.story == FIRST
        assert len(answer.events) == 13, "1.2 s of stream, twice the header time-out"


async def arrived(engine):
    return engine.requests


async def test_a_stream_that_falls_silent_is_given_up_after_the_stall_time(tmp_path):
    engine = ScriptedEngine(BIG, chunks=2, pause_s=20.0)
    failures = FailurePolicy(header_timeout_s=0.3, token_stall_s=0.5, answer_timeout_s=None)
    tiers = [[engine], [ScriptedEngine(SMALL)]]
    async with chain_lab(tmp_path, tiers=tiers, failures=failures) as lab:
        started = time.monotonic()
        with pytest.raises(Exception, match=r"payload|closed|Response"):
            await lab.ask(stream=True)
        assert 0.4 < time.monotonic() - started < 15.0


@pytest.mark.parametrize("where", ["primary", "fallback", "static"])
async def test_bodies_above_a_megabyte_pass_wherever_they_end(tmp_path, where):
    async with chain_lab(tmp_path, failures=FailurePolicy(header_timeout_s=5.0)) as lab:
        lab.big.mode = "ok" if where == "primary" else "500"
        lab.small.mode = "500" if where == "static" else "ok"
        for megabytes in (3, 7):
            body = json.dumps({"stream": True, "prompt": "x" * (megabytes << 20)}).encode()
            answer = await lab.ask(body=body)
            assert answer.served == {"primary": BIG, "fallback": SMALL}.get(where, "static")
            assert answer.status == 200
            assert answer.events[-1] == "[DONE]"


async def test_the_static_tier_keeps_the_clients_connection(tmp_path):
    async with chain_lab(tmp_path, split=[0, 0, 1000]) as lab:
        for _ in range(30):
            answer = await lab.ask(body=b'{"x": "' + b"y" * 20_000 + b'"}')
            assert "connection" not in answer.headers
        assert await lab.envoy.stat("http.llm.downstream_cx_total") == 1


STREAM_CHOICES = [
    (b'{"stream": true}', {"accept": "application/json"}, True),
    (b'{"stream": false}', {"accept": "text/event-stream"}, False),
    (b"{}", {"accept": "text/event-stream"}, True),
    (b"{}", {"accept": "*/*"}, False),
    (b"not json", {}, False),
    (b"not json", {"accept": "text/event-stream"}, True),
    (b'{"stream": "true"}', {"accept": "application/json"}, True),
    (b'{"stream": "No"}', {"accept": "text/event-stream"}, False),
    (b'{"stream": 1}', {}, True),
    (b'{"stream": "maybe"}', {}, False),
    (b'{"stream": "maybe"}', {"accept": "text/event-stream"}, True),
    (b'{"stream": true}', {"content-type": "application/json; charset=utf-8"}, True),
    (b'{"stream": true}', {"content-type": "text/plain"}, True),
]


async def test_the_body_decides_on_streaming_and_then_the_accept_header(tmp_path):
    async with chain_lab(tmp_path, split=[0, 0, 1000]) as lab:
        for body, headers, is_stream in STREAM_CHOICES:
            answer = await lab.ask(body=body, headers=headers)
            expected = "text/event-stream" if is_stream else "application/json"
            assert (answer.status, answer.headers["content-type"]) == (200, expected), (
                body,
                headers,
            )


@pytest.mark.parametrize("status", [200, 429, 503])
@pytest.mark.parametrize("net", [True, False], ids=["with net", "without net"])
async def test_a_static_answer_keeps_its_status_its_body_and_its_retry_after(tmp_path, status, net):
    answer = StaticAnswer(status=status, body={"error": {"message": "busy"}}, retry_after_s=7)
    failures = FailurePolicy(header_timeout_s=0.3, static_on_5xx=net, answer_timeout_s=None)
    async with chain_lab(tmp_path, answer=answer, failures=failures) as lab:
        lab.big.mode = lab.small.mode = "500"
        for split, reason in ((None, "failover"), ([0, 0, 1000], "nominal"), (None, "failover")):
            lab.plan(split)
            await lab.envoy.until(lambda reason=reason: has_reason(lab, reason))
            got = await lab.ask()
            assert got.story == (status, "static", "true", reason)
            assert json.loads(got.text) == {"error": {"message": "busy"}}
            assert got.headers["retry-after"] == "7"
            assert "x-envoy-ratelimited" not in got.headers
        before = await lab.envoy.stats("upstream_rq_retry$")
        assert await lab.ask_many(5) == {(status, "static", "true", "failover"): 5}
        assert await lab.envoy.stats("upstream_rq_retry$") == before, "a wanted status is final"
        await lab.assert_all_accepted()


async def has_reason(lab, reason):
    return (await lab.ask()).reason == reason


async def test_an_answer_longer_than_envoys_default_limit_is_served_whole(tmp_path):
    content = "ä" * 10_000
    answer = StaticAnswer(body={"choices": [{"message": {"content": content}}]})
    async with chain_lab(tmp_path, answer=answer, split=[0, 0, 1000]) as lab:
        assert json.loads((await lab.ask()).text)["choices"][0]["message"]["content"] == content
        assert content in (await lab.ask(stream=True)).text


@pytest.mark.parametrize("net", [True, False], ids=["with net", "without net"])
async def test_the_last_net_answers_where_the_retries_end_before_the_chain(tmp_path, net):
    tiers = [[ScriptedEngine(name, mode="500")] for name in ("a", "b", "c")]
    failures = FailurePolicy(header_timeout_s=0.3, static_on_5xx=net, answer_timeout_s=None)
    async with chain_lab(tmp_path, tiers=tiers, failures=failures) as lab:
        answer = await lab.ask()
        if net:
            assert answer.story == STATIC
            assert BUSY in answer.text
        else:
            assert answer.story == (500, "c", "true", "failover")
        await lab.assert_all_accepted()


async def test_with_the_control_plane_gone_the_chain_still_fails_over(tmp_path):
    async with chain_lab(tmp_path) as lab:
        await lab.ask()
        await lab.ads.stop()
        lab.big.mode = "500"
        assert await lab.ask_many(5) == {FAILED_OVER: 5}
        lab.small.mode = "500"
        assert await lab.ask_many(5) == {STATIC: 5}


async def test_an_idle_connection_is_closed_before_the_engine_closes_it(tmp_path):
    """uvicorn and cpp-httplib do so after 5 s; a request sent into that would count as a failure."""
    async with chain_lab(tmp_path) as lab:
        await lab.ask()

        async def closed():
            return await lab.envoy.stat("cluster.chat/primary.upstream_cx_idle_timeout") == 1

        await lab.envoy.until(closed, what="the idle connection closed")
    assert KEEP_ALIVE_S < 5.0


@with_chains
async def test_plain_answers_may_take_longer_than_headers_of_a_stream(tmp_path, capability):
    engine = ScriptedEngine(BIG, plain_s=1.5)
    failures = FailurePolicy(header_timeout_s=0.8, token_stall_s=1.0, answer_timeout_s=5.0)
    tiers = [[engine], [ScriptedEngine(SMALL)]]
    async with chain_lab(tmp_path, capability=capability, tiers=tiers, failures=failures) as lab:
        assert (await lab.ask(stream=False)).story == FIRST
        charset = {"content-type": "application/json; charset=utf-8"}
        assert (await lab.ask(stream=True, headers=charset)).story == FIRST
        engine.mode = "hang"
        for stream, least_s, most_s in ((True, 0.75, 4.8), (False, 4.9, 20.0)):
            started = time.monotonic()
            assert (await lab.ask(stream=stream)).story == FAILED_OVER
            assert least_s < time.monotonic() - started < most_s
        lab.plan([0, 1000, 0])
        await lab.obeyed(SMALL)
        assert (await lab.ask(stream=True)).served == SMALL, "both routes got the weights"
        await lab.assert_all_accepted()


@with_chains
@pytest.mark.parametrize(
    ("mode", "header"), [("503", "x-envoy-overloaded"), ("429", "x-envoy-ratelimited")]
)
async def test_a_gateway_before_an_engine_cannot_forbid_the_next_tier(
    tmp_path, capability, mode, header
):
    engine = ScriptedEngine(BIG, mode=mode, headers={header: "true"})
    tiers = [[engine], [ScriptedEngine(SMALL)]]
    async with chain_lab(tmp_path, capability=capability, tiers=tiers) as lab:
        assert await lab.ask_many(2) == {FAILED_OVER: 2}
        assert engine.requests == 2


async def test_who_forbids_a_fallback_is_told_when_to_return_as_the_engine_says_it(tmp_path):
    async with chain_lab(tmp_path) as lab:
        for told in ("33", "Mon, 30 Nov 2026 08:00:00 GMT", None):
            lab.big.headers = {"retry-after": told} if told else {}
            for mode, status, otherwise in (
                ("429", 429, "1"),
                ("503", 503, "1"),
                ("500", 503, "5"),
            ):
                lab.big.mode = mode
                answer = await lab.ask(headers={"x-no-fallback": "true"})
                expected = (status, told or otherwise)
                assert (answer.status, answer.headers["retry-after"]) == expected, (mode, told)
        await lab.assert_all_accepted()
