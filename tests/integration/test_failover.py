"""The data plane alone: the control plane was killed with -9, and every way down still ends well."""

from __future__ import annotations

import json

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
    return result


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chains(tmp_path_factory):
    async with orphaned_chains(tmp_path_factory.mktemp("orphans"), cases()) as running:
        yield running


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
    if way == "429":
        assert {each.attempts for each in answers} == {2}, "back-pressure ejects nobody"
    else:
        assert answers[-1].attempts == 1, "an ejected or empty tier is not asked"


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
    if way != "429":
        assert answers[-1].attempts == 1
        assert (chain.engine_requests - before) / len(answers) <= 1.2


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("way", WAYS[:-1])
async def test_who_forbids_a_fallback_gets_the_primary_or_an_honest_error(chains, way, stream):
    chain = named(chains, "strict", way, stream)
    answer = await chain.ask(stream=stream, headers=STRICT)
    assert answer.story == FIRST
    assert_whole(answer, stream)
    await break_engine(chain.big, way)
    small = chain.small.requests
    status, reason = (429, "rate_limited") if way == "429" else (503, "fault")
    answers = await chain.ask_many(30, stream=stream, headers=STRICT)
    assert chain.small.requests == small, "no other tier is asked"
    for each in answers:
        assert (each.status, each.downgraded, each.reason) == (status, None, reason)
        assert int(each.headers["retry-after"]) >= 1
        assert each.headers["content-type"] == "application/json"
        error = json.loads(each.text)["error"]
        assert {"message", "type", "param", "code"} == error.keys()
    assert (await chain.ask(stream=stream)).story == FAILED_OVER, "others fall back as ever"
