"""Classes of requests through the whole control plane: a file, a server, a proxy, and what was learned."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
import yaml

from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.xds_process import running_server
from xds_server.resources.bootstrap import bootstrap

pytestmark = pytest.mark.envoy

CLASSES = [
    {"name": "core", "match": {"header": "x-priority", "value": "high"}},
    {"name": "rest"},
]

BATCH = {"name": "batch", "match": {"prefix": "/v1/batch/"}}


def document(engine):
    instance = {"name": "a", "address": f"127.0.0.1:{engine.port}", "capacity": 10}
    return {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [
            {
                "name": "chat",
                "match": {"models": ["gpt-large", "chat"]},
                "tiers": [
                    {"name": "primary", "instances": [instance]},
                    {"name": "static", "answer": {"json": {"busy": True}}},
                ],
            }
        ],
        "classes": CLASSES,
        "policy": {"evidence": {"flush_s": 0.2}},
    }


async def explained(server, subject):
    status, text = await server.get(f"/debug/explain?subject={subject}")
    assert status == 200, text
    return yaml.safe_load(text)


async def test_the_shares_of_classes_are_learned_from_proxies_and_kept(tmp_path):
    config, state = tmp_path / "config.yaml", tmp_path / "state"
    async with (
        scripted_engine(ScriptedEngine(model="big")) as engine,
        aiohttp.ClientSession() as session,
    ):
        config.write_text(yaml.safe_dump(document(engine)))
        async with running_server(config, state, ["--grace-s", "0"]) as server:
            before = await explained(server, "chat/core")
            assert (before["demand_ratio"], before["weights"]) == (
                0.5,
                {"primary": 1000, "static": 0},
            )
            start = bootstrap(
                node_id="edge-1", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
            )
            async with running_envoy(start, tmp_path / "envoy") as envoy:
                base = f"http://127.0.0.1:{await envoy.listener_port('llm')}/v1"

                async def ask(priority):
                    async with session.post(
                        f"{base}/chat/completions",
                        json={"model": "gpt-large"},
                        headers={"x-priority": priority},
                    ) as answer:
                        assert answer.status == 200

                for _ in range(20):
                    await asyncio.gather(*(ask("high") for _ in range(9)), ask("low"))
                async with session.get(f"{base}/models") as answer:
                    listed = await answer.json()
                assert [each["id"] for each in listed["data"]] == ["chat", "gpt-large"]

                async def learned():
                    ratio = (await explained(server, "chat/core"))["demand_ratio"]
                    return ratio if ratio > 0.8 else None

                # (180 + 20 x 0.5) / (200 + 20), within what is worth publishing; the logs of the last requests
                # may come in another batch.
                async def all_learned():
                    ratio = (await explained(server, "chat/core"))["demand_ratio"]
                    return ratio == pytest.approx(0.864, abs=0.02)

                await eventually(all_learned, what="the observed share")
                assert await envoy.rejected() == {}

                # Another class at run time: nothing is cut, what was learned stays.
                engine.chunks, engine.pause_s = 20, 0.1
                async with session.post(
                    f"{base}/chat/completions", json={"model": "chat", "stream": True}
                ) as stream:
                    changed = document(engine) | {"classes": [*CLASSES, BATCH]}
                    config.write_text(yaml.safe_dump(changed))
                    await server.event("config_reloaded")

                    async def batched():
                        async with session.post(
                            f"{base}/batch/completions", json={"model": "chat"}
                        ) as answer:
                            assert answer.status == 200
                            return engine.last_headers["x-request-class"] == "batch"

                    await eventually(batched, what="the new class")
                    assert (await stream.text()).endswith("data: [DONE]\n\n")
                assert (await explained(server, "chat/core"))["demand_ratio"] > 0.6
                assert (await explained(server, "chat/batch"))["kind"] == "class"
                assert await envoy.rejected() == {}
                config.write_text(yaml.safe_dump(document(engine)))
                await eventually(learned, what="what was learned")
                ratio = (await explained(server, "chat/core"))["demand_ratio"]

            async def kept():
                return '"classes"' in (state / "plan.json").read_text()

            await eventually(kept, what="the state on disk")
        async with running_server(config, state, ["--grace-s", "0"]) as server:
            after = await explained(server, "chat/core")
            assert after["demand_ratio"] == pytest.approx(ratio, abs=0.02)
