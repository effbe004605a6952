"""The data plane alone: the control plane was killed with -9, and every way down still ends well."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
import pytest_asyncio

from tests.fakes.orphan import BUSY, Chain, orphaned_chains
from tests.fakes.scripted_engine import ScriptedEngine

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

BIG, SMALL = "llama-3-70b", "llama-3-8b"
FIRST = (200, BIG, None, None)
FAILED_OVER = (200, SMALL, "true", "failover")
STATIC = (200, "static", "true", "failover")
STRICT = {"x-no-fallback": "true"}
WAYS = ("500", "503", "429", "reset", "hang", "refuse", "empty")
STREAMS = []
"""Tasks of the streams that ran while the control plane was killed."""
BUSY_ENGINE = ("429", "503")
"""Ways of an engine to say "not now", which ejects nobody."""
STRICT_ANSWERS = {"429": (429, "rate_limited"), "503": (503, "overloaded")}
BOTH = [pytest.param(False, id="JSON"), pytest.param(True, id="SSE")]


def cases():
    """One chain per way that a test breaks: an ejection lasts longer than a test."""
    result = {}
    for kind in ("JSON", "SSE"):
        for way in WAYS:
            small = ScriptedEngine(SMALL)
            first = [] if way == "empty" else [ScriptedEngine(BIG)]
            result[f"one-{way}-{kind}".lower()] = Chain(tiers=[first, [small]])
        for way in WAYS[:-1]:
            result[f"all-{way}-{kind}".lower()] = Chain()
            result[f"strict-{way}-{kind}".lower()] = Chain()
            result[f"guarded-{way}-{kind}".lower()] = Chain(
                limits={"primary": {"concurrency": 100}}
            )
        result[f"strict-empty-{kind}".lower()] = Chain(tiers=[[], [ScriptedEngine(SMALL)]])
        result[f"guarded-empty-{kind}".lower()] = Chain(
            tiers=[[], [ScriptedEngine(SMALL)]], limits={"primary": {"concurrency": 100}}
        )
        result[f"one-overflow-{kind}".lower()] = Chain(
            tiers=[[slow(BIG)], [ScriptedEngine(SMALL)]], limits={"primary": {"concurrency": 1}}
        )
        result[f"all-overflow-{kind}".lower()] = Chain(
            tiers=[[slow(BIG)], [slow(SMALL)]],
            limits={"primary": {"concurrency": 1}, "fallback": {"concurrency": 1}},
        )
        result[f"strict-overflow-{kind}".lower()] = Chain(
            tiers=[[slow(BIG)], [ScriptedEngine(SMALL)]], limits={"primary": {"concurrency": 1}}
        )
        result[f"gated-hang-{kind}".lower()] = Chain(limits={"primary": {"concurrency": 100}})
        tiers = [[ScriptedEngine(name, mode="500")] for name in ("a", "b", "c", "d")]
        result[f"long-500-{kind}".lower()] = Chain(tiers=tiers)
        result[f"long-429-{kind}".lower()] = Chain(
            tiers=[[ScriptedEngine(name, mode="429")] for name in ("a", "b", "c", "d")]
        )
    result["clients"] = Chain()
    result["gone"] = Chain()
    long = ScriptedEngine(BIG, chunks=60, pause_s=0.1)
    result["running"] = Chain(tiers=[[long], [ScriptedEngine(SMALL)]])
    result["cut"] = Chain(tiers=[[ScriptedEngine(BIG, chunks=2)], [ScriptedEngine(SMALL)]])
    result["headers"] = Chain(tiers=[[ScriptedEngine(BIG, plain_s=0.1)], [ScriptedEngine(SMALL)]])
    return result


def slow(model):
    return ScriptedEngine(model, plain_s=0.1, pause_s=0.03)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chains(tmp_path_factory):
    everything = cases()
    running = everything["running"]

    async def start_streams():
        STREAMS.extend(asyncio.create_task(running.ask(stream=True)) for _ in range(10))
        before = running.big.requests
        await running.envoy.until(lambda: reached(running, before + 10), what="the streams")

    directory = tmp_path_factory.mktemp("orphans")
    async with orphaned_chains(directory, everything, before=start_streams) as alone:
        yield alone
        await asyncio.gather(*STREAMS, return_exceptions=True)  # also where no test asked for them


async def reached(chain, requests):
    return chain.big.requests >= requests


async def test_streams_that_run_while_the_control_plane_dies_reach_their_end(chains):
    answers = await asyncio.gather(*STREAMS)
    assert {each.story for each in answers} == {FIRST}
    assert {len(each.events) for each in answers} == {61}, "6 s, twelve times the header time-out"


async def break_engine(engine, way):
    if way == "refuse":
        await engine.stop_listening()
    engine.mode = "reset" if way == "refuse" else way  # what is still open ends too


def assert_whole(answer, stream):
    """An answer is complete in its own format, whoever gave it."""
    if stream:
        assert answer.events[-1] == "[DONE]"
    else:
        assert answer.headers["content-type"].startswith("application/json")
        assert json.loads(answer.text)["choices"]


def named(chains, group, way, stream):
    return chains[f"{group}-{way}-{'sse' if stream else 'json'}"]


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("way", WAYS)
async def test_whatever_the_primary_does_clients_get_the_fallback_and_the_truth(
    chains, way, stream
):
    chain = named(chains, "one", way, stream)
    if way != "empty":
        await break_engine(chain.big, way)
    answers = await chain.ask_many(100, stream=stream)
    # An empty tier was known to the control plane while it lived: it moved the requests, Envoy did not.
    reason = "no_capacity" if way == "empty" else "failover"
    assert {each.story for each in answers} == {(200, SMALL, "true", reason)}
    for each in answers:
        assert each.attempts in {1, 2}
        assert_whole(each, stream)
    if way in BUSY_ENGINE:
        assert {each.attempts for each in answers} == {2}, "back-pressure ejects nobody"
    else:
        later = await chain.ask(stream=stream)
        assert later.attempts == 1, "an ejected or empty tier is not asked"


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("way", WAYS[:-1])
async def test_with_every_engine_down_the_static_answer_comes_and_says_so(chains, way, stream):
    chain = named(chains, "all", way, stream)
    before = chain.engine_requests
    for engine in (chain.big, chain.small):
        await break_engine(engine, way)
    answers = await chain.ask_many(100, stream=stream)
    assert {each.story for each in answers} == {STATIC}
    for each in answers:
        assert_whole(each, stream)
        assert BUSY in each.text
        assert each.attempts in {1, 2, 3}
        assert "x-envoy-upstream-service-time" in each.headers, "the static tier, not the last net"
    if way not in BUSY_ENGINE:
        assert (await chain.ask(stream=stream)).attempts == 1
        assert (chain.engine_requests - before) / len(answers) <= 1.2


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", ["strict", "guarded"])
async def test_who_forbids_a_fallback_gets_the_primary_or_an_honest_error(
    chains, group, way, stream
):
    """Alone, and behind the gate of a tier with a limit."""
    chain = named(chains, group, way, stream)
    if way != "empty":
        answer = await chain.ask(stream=stream, headers=STRICT)
        assert answer.story == FIRST
        assert_whole(answer, stream)
        await break_engine(chain.big, way)
    small = chain.small.requests
    status, reason = STRICT_ANSWERS.get(way, (503, "fault"))
    answers = await chain.ask_many(30, stream=stream, headers=STRICT)
    assert chain.small.requests == small, "no other tier is asked"
    for each in answers:
        assert (each.status, each.downgraded, each.reason) == (status, None, reason)
        assert int(each.headers["retry-after"]) >= 1
        assert each.headers["content-type"] == "application/json"
        error = json.loads(each.text)["error"]
        assert {"message", "type", "param", "code"} == error.keys()
    others = await chain.ask(stream=stream)
    assert others.served == SMALL, "others fall back as ever"


@pytest.mark.parametrize("stream", BOTH)
async def test_what_overflows_a_tier_goes_to_the_next_and_at_last_to_the_static_one(chains, stream):
    """A circuit breaker's 503 (UO) is never retried by the router that meets it: a gate meets it first."""
    chain = named(chains, "one", "overflow", stream)
    answers = await chain.ask_many(100, stream=stream)
    assert {each.story for each in answers} == {FIRST, FAILED_OVER}
    chain = named(chains, "all", "overflow", stream)
    more = await chain.ask_many(100, stream=stream)
    assert {each.story for each in more} == {FIRST, FAILED_OVER, STATIC}
    for each in (*answers, *more):
        assert_whole(each, stream)
        assert "x-envoy-overloaded" not in each.headers
        assert each.attempts == [BIG, SMALL, "static"].index(each.served) + 1


@pytest.mark.parametrize("stream", BOTH)
async def test_who_forbids_a_fallback_is_told_that_the_primary_is_full(chains, stream):
    chain = named(chains, "strict", "overflow", stream)
    answers = await chain.ask_many(40, stream=stream, headers=STRICT)
    full = [each for each in answers if each.status != 200]
    assert 0 < len(full) < 40
    for each in full:
        assert (each.status, each.reason) == (503, "overloaded")
        assert each.headers["retry-after"] == "1"
        assert json.loads(each.text)["error"]["code"] == "overloaded"
    assert chain.small.requests == 0


@pytest.mark.parametrize("stream", BOTH)
async def test_a_hung_engine_behind_a_gate_is_ejected_too(chains, stream):
    chain = named(chains, "gated", "hang", stream)
    chain.big.mode = "hang"
    answers = await chain.ask_many(40, stream=stream)
    assert {each.story for each in answers} == {FAILED_OVER}
    assert chain.big.requests < 30
    before = chain.big.requests
    await chain.ask_many(20, stream=stream)
    assert chain.big.requests == before


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("way", ["500", "429"])
async def test_where_the_retries_end_before_the_chain_the_last_net_answers_in_kind(
    chains, way, stream
):
    chain = named(chains, "long", way, stream)
    answer = await chain.ask(stream=stream)
    assert answer.story == STATIC
    assert answer.attempts == 3
    assert "x-envoy-upstream-service-time" not in answer.headers, "the net, not the static tier"
    assert BUSY in answer.text
    assert_whole(answer, stream)


async def test_a_machine_that_is_gone_costs_the_connect_timeout_until_it_is_ejected(chains):
    chain = chains["gone"]
    await chain.big.stop_accepting()
    chain.big.mode = "reset"  # what is still open ends
    await chain.ask()
    started = time.monotonic()
    answers = await chain.ask_many(20, clients=5, stream=True)
    assert {each.story for each in answers} == {FAILED_OVER}
    assert time.monotonic() - started < 20.0, "1 s each, for the first of each client"
    assert (await chain.ask()).attempts == 1


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422])
async def test_an_error_of_the_client_is_shown_and_neither_retried_nor_failed_over(chains, status):
    chain = chains["clients"]
    chain.big.mode = str(status)
    before = chain.engine_requests
    answer = await chain.ask(stream=True)
    assert answer.story == (status, BIG, None, None)
    assert chain.engine_requests == before + 1


async def test_nothing_is_retried_after_the_first_byte(chains):
    chain = chains["cut"]
    chain.big.cut_after = 1
    small = chain.small.requests
    before = chain.big.requests
    with pytest.raises(aiohttp.ClientPayloadError):
        await chain.ask(stream=True)
    assert (chain.big.requests, chain.small.requests) == (before + 1, small)


@pytest.mark.parametrize(
    "sent",
    [
        {"x-envoy-max-retries": "9", "x-envoy-retry-on": "retriable-4xx"},
        {"x-envoy-upstream-rq-per-try-timeout-ms": "1"},
        {"x-envoy-upstream-rq-timeout-ms": "1"},
        {"x-envoy-hedge-on-per-try-timeout": "true"},
        {"x-envoy-internal": "true", "x-envoy-upstream-rq-per-try-timeout-ms": "1"},
    ],
    ids=lambda sent: next(iter(sent)),
)
async def test_a_client_cannot_steer_retries_or_times_and_so_eject_an_engine(chains, sent):
    chain = chains["headers"]
    for claimed in ({}, {"x-forwarded-for": "10.0.0.1"}):
        assert (await chain.ask(headers={**sent, **claimed})).story == FIRST
