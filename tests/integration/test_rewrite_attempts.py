"""What each attempt of a request gives to its engine, whatever kind of chain leads there."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.fakes.answer import CHAT
from tests.fakes.chain import chain_lab
from tests.fakes.plans import a_model, a_model_plan, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.rewriting import echo_engines, refusal_of, rewriting_proxy
from xds_server.core.limits import Limit
from xds_server.core.model import MaxTokens
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy, RewritePolicy, Unreadable
from xds_server.resources.bodies.rewrite import HEADER
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

with_chains = pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
ASKED = b'{"model": "chat", "max_tokens": 1000, "seed": 12345678901234567890}'
FIRST = ASKED.replace(b'"chat"', b'"llama-3-70b"')
SECOND = ASKED.replace(b'"chat"', b'"llama-3-8b"').replace(b"1000", b"500")
UNREADABLE = [b"not JSON", b"[]", b'{"model": 5}', b'{"model": "chat"', b"\xff\xfe\x00"]


def chain_of(first, second):
    return a_model(
        tiers=[
            a_tier("primary", "llama-3-70b", [first.port]),
            replace(a_tier("fallback", "llama-3-8b", [second.port]), max_tokens=MaxTokens()),
            a_static_tier(),
        ]
    )


@with_chains
async def test_every_attempt_is_rewritten_for_the_tier_that_it_goes_to(tmp_path, capability):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        topology = a_topology(chain_of(first, second))
        proxy = await stack.enter_async_context(
            rewriting_proxy(tmp_path, topology, capability=capability)
        )
        reply = await proxy.ask(CHAT, ASKED)
        assert (reply.body, reply.headers["x-served-model"]) == (FIRST, "llama-3-70b")

        first.status = 500
        for _ in range(5):  # by retries first, then because the first tier is ejected
            reply = await proxy.ask(CHAT, ASKED)
            assert (reply.body, reply.headers["x-served-model"]) == (SECOND, "llama-3-8b")
        assert {each.body for each in first.received} == {FIRST}
        assert {each.body for each in second.received} == {SECOND}

        second.status = 500
        reply = await proxy.ask(CHAT, ASKED)
        assert (reply.status, reply.headers["x-served-model"]) == (200, "static")
        await proxy.assert_all_accepted()


@with_chains
async def test_a_tier_that_the_weights_choose_gets_its_own_name(tmp_path, capability):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        model = chain_of(first, second)
        topology = a_topology(model)
        builder = SnapshotBuilder(topology, Policy(), capability)
        proxy = await stack.enter_async_context(
            rewriting_proxy(tmp_path, topology, capability=capability)
        )
        plan = Plan(models=(a_model_plan(model, [0, 1000, 0]),), next_deadline=None)
        proxy.ads.set(builder.build(plan))

        async def moved():
            return (await proxy.ask(CHAT, ASKED)).body == SECOND

        await proxy.envoy.until(moved, what="the fallback's name")


async def test_another_name_and_another_scale_reach_requests_without_a_change_of_clusters(tmp_path):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        model = chain_of(first, second)
        topology = a_topology(model)
        proxy = await stack.enter_async_context(rewriting_proxy(tmp_path, topology))
        primary, *rest = model.tiers
        renamed = replace(primary, serves="llama-4", max_tokens=MaxTokens(scale=0.1))
        after = a_topology(replace(model, tiers=(renamed, *rest)))
        builder = SnapshotBuilder(after, Policy(), Capability.COMPOSITE)
        changes = await proxy.envoy.stat("cluster_manager.cluster_modified")
        proxy.ads.set(builder.build(a_plan(after)))
        wanted = ASKED.replace(b'"chat"', b'"llama-4"').replace(b"1000", b"100")

        async def renamed_too():
            return (await proxy.ask(CHAT, ASKED)).body == wanted

        await proxy.envoy.until(renamed_too, what="the new name")
        assert await proxy.envoy.stat("cluster_manager.cluster_modified") == changes


async def test_streams_are_answered_by_the_tier_whose_name_was_put_in(tmp_path):
    async with chain_lab(tmp_path) as lab:
        streamed = await lab.ask(stream=True)
        assert streamed.served == "llama-3-70b"
        assert streamed.events[-1] == "[DONE]"
        lab.big.mode = "500"
        streamed = await lab.ask(stream=True)
        assert streamed.served == "llama-3-8b"
        assert json.loads(streamed.events[0])["model"] == "llama-3-8b"
        assert streamed.events[-1] == "[DONE]"


@with_chains
async def test_a_refused_body_reaches_no_engine_is_not_retried_and_ejects_nobody(
    tmp_path, capability
):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        proxy = await stack.enter_async_context(
            rewriting_proxy(tmp_path, a_topology(chain_of(first, second)), capability=capability)
        )
        for body in UNREADABLE * 2:
            reply = await proxy.ask(CHAT, body)
            assert (reply.status, refusal_of(reply)) == (400, "invalid_body")
            assert "x-served-model" not in reply.headers, "nobody served it"
        assert first.received == second.received == []
        ejections = await proxy.envoy.stats("ejections_total")
        assert set(ejections.values()) == {0}
        assert (await proxy.ask(CHAT, ASKED)).body == FIRST


async def test_where_the_policy_says_so_engines_get_what_cannot_be_read(tmp_path):
    policy = Policy(rewrite=RewritePolicy(unreadable=Unreadable.FORWARD))
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        topology = a_topology(chain_of(first, second))
        proxy = await stack.enter_async_context(rewriting_proxy(tmp_path, topology, policy=policy))
        for body in UNREADABLE:
            reply = await proxy.ask(CHAT, body)
            assert (reply.status, reply.body) == (200, body)
        assert (await proxy.ask(CHAT, ASKED)).body == FIRST
        first.status = 500
        body = b'{"model": 5, "max_tokens": 1000}'
        reply = await proxy.ask(CHAT, body)
        assert reply.body == body.replace(b"1000", b"500"), "what can be read of it is obeyed"


async def test_a_tier_that_serves_the_clients_name_gets_the_body_as_it_came(tmp_path):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        model = a_model(
            tiers=[
                a_tier("primary", "chat", [first.port]),
                a_tier("fallback", "llama-3-8b", [second.port]),
                a_static_tier(),
            ]
        )
        proxy = await stack.enter_async_context(rewriting_proxy(tmp_path, a_topology(model)))
        forged = {HEADER: 'forward 0.001 1 7 "forged"'}
        for body in (b'{"model": "chat-adapter-7"}', b'{"max_tokens": 1000}', b"not JSON", b""):
            assert (await proxy.ask(CHAT, body, **forged)).body == body
            assert HEADER not in first.received[-1].headers
        first.status = 500
        assert (await proxy.ask(CHAT, ASKED)).body == ASKED.replace(b'"chat"', b'"llama-3-8b"')


@with_chains
async def test_a_request_that_may_not_fall_back_is_rewritten_too(tmp_path, capability):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        topology = a_topology(chain_of(first, second))
        proxy = await stack.enter_async_context(
            rewriting_proxy(tmp_path, topology, capability=capability)
        )
        reply = await proxy.ask(CHAT, ASKED, x_no_fallback="true")
        assert (reply.status, reply.body) == (200, FIRST)


@with_chains
async def test_tiers_behind_a_gate_get_their_own_name(tmp_path, capability):
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(echo_engines(2))
        model = chain_of(first, second)
        primary, fallback, static = model.tiers
        gated = replace(
            model,
            tiers=(
                replace(primary, limit=Limit(concurrency=5)),
                replace(fallback, limit=Limit(requests_per_second=1000.0)),
                static,
            ),
        )
        proxy = await stack.enter_async_context(
            rewriting_proxy(tmp_path, a_topology(gated), capability=capability)
        )
        assert (await proxy.ask(CHAT, ASKED)).body == FIRST
        first.status = 500
        assert (await proxy.ask(CHAT, ASKED)).body == SECOND
        assert HEADER not in second.received[-1].headers
        assert (await proxy.ask(CHAT, b"not JSON")).status == 400
