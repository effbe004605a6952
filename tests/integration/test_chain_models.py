"""Several models behind one listener: each request meets its own chain and its own answer."""

from __future__ import annotations

from contextlib import AsyncExitStack

import aiohttp
import pytest

from tests.fakes.envoy import running_envoy
from tests.fakes.plans import a_model, a_model_plan, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.tiny_ads import tiny_ads
from xds_server.core.model import StaticAnswer
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy


def answer(text):
    return a_static_tier(StaticAnswer(body={"choices": [{"message": {"content": text}}]}))


async def test_domain_and_longest_prefix_choose_the_model_and_its_answers(tmp_path):
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(scripted_engine(ScriptedEngine(name)))
            for name in ("wide", "narrow", "other")
        }

        def model(name, **where):
            tier = a_tier("primary", name, [engines[name].port], prefix=name)
            return a_model(name, tiers=[tier, answer(f"no {name}")], **where)

        topology = a_topology(
            model("wide", prefix="/"),
            model("narrow", prefix="/v1/narrow/"),
            model("other", domains=["other.example"], prefix="/v1/"),
        )
        builder = SnapshotBuilder(topology, Policy(), Capability.COMPOSITE)
        ads = await stack.enter_async_context(tiny_ads(builder.build(a_plan(topology))))
        config = bootstrap(node_id="n", cluster="c", xds_host="127.0.0.1", xds_port=ads.port)
        envoy = await stack.enter_async_context(running_envoy(config, tmp_path))
        port = await envoy.listener_port("llm")
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(path, host="any.example"):
            url = f"http://127.0.0.1:{port}{path}"
            headers = {"host": host}
            async with session.post(url, json={}, headers=headers) as response:
                served = response.headers.get("x-served-model")
                return response.status, served, await response.text()

        cases = {
            ("/v1/chat/completions", "any.example"): "wide",
            ("/v1/narrow/chat/completions", "any.example"): "narrow",
            ("/x/../v1/narrow/chat/completions", "any.example"): "narrow",
            ("/v1/chat/completions", "other.example"): "other",
            ("/v1/chat/completions", "other.example:8080"): "other",
        }
        for (path, host), name in cases.items():
            assert (await ask(path, host))[:2] == (200, name), (path, host)
        assert (await ask("/elsewhere", "other.example"))[0] == 404

        # Only the model that is moved moves, and everyone's static answer is their own.
        wide, narrow, other = topology.models
        ads.set(
            builder.build(
                Plan(
                    models=(
                        a_model_plan(wide),
                        a_model_plan(narrow, [0, 1000]),
                        a_model_plan(other),
                    ),
                    next_deadline=None,
                )
            )
        )

        async def moved():
            return (await ask("/v1/narrow/completions"))[1] == "static"

        await envoy.until(moved)
        assert "no narrow" in (await ask("/v1/narrow/completions"))[2]
        assert (await ask("/v1/completions"))[1] == "wide"
        engines["other"].mode = "500"
        assert "no other" in (await ask("/v1/completions", "other.example"))[2]
        assert await envoy.rejected() == {}
