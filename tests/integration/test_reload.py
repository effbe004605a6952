"""A changed file while clients keep their connections open: nothing fails, and what is new comes into force.

Envoy gives a changed listener to new connections only, but a changed route table to all of them; and its own
connections to the internal listeners are open for longer than any client's.
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import AsyncExitStack, suppress

import pytest

from tests.fakes.reload_lab import reload_lab
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine

pytestmark = pytest.mark.envoy

with_both_protocols = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
BIG, SMALL = "llama-3-70b", "llama-3-8b"
CLASSES = [
    {"name": "core", "match": {"header": "x-priority", "value": "high"}},
    {"name": "rest", "when_critical": "reject"},
]
MILLION = {"requests_per_second": 1e6, "tokens_per_second": 1e6}


def engines_of(name, engine):
    return [{"name": f"{name}-1", "address": f"127.0.0.1:{engine.port}"}]


def document_of(big, small):
    said = {"choices": [{"message": {"content": "before"}}]}
    return {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [
            {
                "name": "chat",
                "tiers": [
                    {"name": "primary", "serves": BIG, "instances": engines_of("big", big)},
                    {"name": "fallback", "serves": SMALL, "instances": engines_of("small", small)},
                    {"name": "static", "answer": {"json": said}},
                ],
            }
        ],
        "policy": {"failures": {"header_timeout_s": 2, "answer_timeout_s": 2}},
    }


def plain(document):
    return document


def named(document):
    document["models"][0]["match"] = {"models": ["chat"]}
    return document


def classified(document):
    document["classes"] = CLASSES
    return document


def limited(document):
    document["models"][0]["limit"] = MILLION
    document["tenants"] = {"header": "x-tenant", "others": MILLION, "missing": MILLION}
    return document


def gated(document):
    for tier in document["models"][0]["tiers"][:2]:
        tier["limit"] = {**MILLION, "concurrency": 100}
    return document


def everything(document):
    document["models"][0]["tiers"][1]["max_tokens"] = {"scale": 0.5}
    document["policy"]["evidence"] = {"stream_errors": True}
    return named(classified(limited(document)))


def unread(document):
    """No body is read any more."""
    document["policy"]["failures"]["answer_timeout_s"] = None
    document["policy"]["failures"]["static_on_5xx"] = False
    document["policy"]["evidence"] = {"access_log": False}
    return document


STEPS = (named, plain, limited, plain, limited, classified, everything, unread, named)


@with_both_protocols
async def test_nothing_fails_on_connections_that_were_open_before(tmp_path, delta):
    big, small = ScriptedEngine(BIG), ScriptedEngine(SMALL)
    async with scripted_engine(big), scripted_engine(small):
        document = document_of(big, small)
        async with (
            reload_lab(tmp_path, document, delta=delta) as lab,
            AsyncExitStack() as opened,
        ):
            seen = []
            for step in (plain, *STEPS):
                async with lab.client() as kept:
                    seen.append(await opened.enter_async_context(lab.http2_client()))
                    await stories(kept, seen)
                    await lab.reload(step(copy.deepcopy(document)))
                    for _ in range(5):
                        assert await stories(kept, seen) == {(200, BIG, None, None)}, step
            assert len(still_open(seen)) > 3, "or nothing was tested"


async def stories(kept, clients):
    """Ask on every connection that is open; return what they tell."""
    found = {(await kept.ask()).story}
    for each in still_open(clients):
        with suppress(ConnectionAbortedError):
            found.add((await each.ask()).story)
    return found


def still_open(clients):
    return [each for each in clients if not each.is_told_to_leave]


async def test_what_proxies_answer_and_allow_by_themselves_changes_at_once(tmp_path):
    """Their connections to their own listeners are reused, and each keeps what it was opened with."""
    big, small = ScriptedEngine(BIG), ScriptedEngine(SMALL, mode="500")
    async with scripted_engine(big), scripted_engine(small):
        document = document_of(big, small)
        tiers = document["models"][0]["tiers"]
        tiers[0]["limit"] = {"concurrency": 100}
        async with reload_lab(tmp_path, document) as lab, lab.client() as client:
            big.mode = "429"
            for _ in range(3):
                assert "before" in (await client.ask()).text
            tiers[2]["answer"]["json"]["choices"][0]["message"]["content"] = "after"
            await lab.reload(document)
            await lab.envoy.until(says(client, "after"), what="the new answer", timeout_s=30)
            for _ in range(20):
                assert "after" in (await client.ask()).text

            big.mode = "ok"
            assert (await client.ask()).served == BIG
            tiers[0]["limit"]["requests_per_second"] = 0.001
            await lab.reload(document)
            await lab.envoy.until(says(client, "after"), what="the new limit", timeout_s=30)
            for _ in range(20):
                assert "after" in (await client.ask()).text


def says(client, word):
    async def probe():
        return word in (await client.ask()).text

    return probe


async def test_streams_and_requests_outlive_the_connections_inside_the_proxy(tmp_path):
    big = ScriptedEngine(BIG, chunks=30, pause_s=0.1)
    small = ScriptedEngine(SMALL, mode="500")
    async with scripted_engine(big), scripted_engine(small):
        document = document_of(big, small)
        document["models"][0]["tiers"][0]["limit"] = {"concurrency": 100}
        async with reload_lab(tmp_path, document) as lab, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(lab.client()) for _ in range(6)]
            streams = [asyncio.create_task(each.ask(stream=True)) for each in clients[:3]]

            async def ask_on(client):
                answers = []
                while not all(each.done() for each in streams):
                    answers.append((await client.ask()).story)
                return answers

            asked = await asyncio.gather(*(ask_on(each) for each in clients[3:]))
            for each in streams:
                assert (await each).story == (200, BIG, None, None)
                assert len((await each).events) == 31
            assert {story for answers in asked for story in answers} == {(200, BIG, None, None)}
            ended = await lab.envoy.stat(
                "cluster.chat/primary/gate.upstream_cx_max_duration_reached"
            )
            assert ended > 1
