"""A real agent, a real control plane: what an engine's page says becomes a plan."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from contextlib import asynccontextmanager

import yaml

from tests.fakes.engine_pages import EnginePages
from tests.fakes.envoy import eventually
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT, running_server

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m"}} {kv}
"""


def page(*, kv: float = 0.1, waiting: int = 0, running: int = 1) -> dict[str, str]:
    return {
        "/metrics": PAGE.format(kv=kv, waiting=waiting, running=running),
        "/health": "",
    }


@asynccontextmanager
async def running_agent(config, path):
    path.write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar_agent", "run", "--config", str(path)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)


async def test_a_real_agent_drives_the_plan_from_load_to_death_of_an_engine(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        engines = {name: EnginePages(page()) for name in "ab"}
        for engine in engines.values():
            await engine.start()
            stack.push_async_callback(engine.stop)
        config = tmp_path / "config.yaml"
        instances = [
            {"name": name, "address": f"127.0.0.1:{each.port}", "capacity": 10}
            for name, each in engines.items()
        ]
        tiers = [
            {"name": "primary", "instances": instances},
            {"name": "static", "answer": {"json": {}}},
        ]
        config.write_text(yaml.safe_dump({"models": [{"name": "chat", "tiers": tiers}]}))
        server = await stack.enter_async_context(
            running_server(config, tmp_path / "state", ["--grace-s", "30"])
        )
        agent = {
            "node": "host-1",
            "control_plane": {"address": server.target},
            "instances": [
                {"name": name, "url": each.url, "engine": "vllm", "capacity": 10}
                for name, each in engines.items()
            ],
            "gpu": {"backend": "none"},
            "admin": "127.0.0.1:0",
        }
        await stack.enter_async_context(running_agent(agent, tmp_path / "agent.yaml"))
        await server.event("server_warm", cause="telemetry")
        connected = server.named("agent_connected")[0]
        assert connected["instances"] == ["a", "b"]

        async def weights() -> tuple[int, int]:
            plan = await server.get_json("/debug/plan")
            a, b = plan["models"][0]["tiers"][0]["instances"]
            return a["weight"], b["weight"]

        before = await weights()
        assert before[0] == before[1]
        engines["a"].pages = page(kv=1.0, waiting=10, running=10)

        async def a_weighs_less() -> bool:
            a, b = await weights()
            return a < 0.6 * b

        await eventually(a_weighs_less, what="the full engine weighs less")
        await engines["a"].stop()
        down = await server.event("instance_down", instance="a")
        assert down["reason"]


async def test_an_idle_engine_that_hangs_is_taken_out_by_a_token_and_comes_back_by_stages(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        engine = ScriptedEngine("m", pages=page(running=0))
        await stack.enter_async_context(scripted_engine(engine))
        address = f"127.0.0.1:{engine.port}"
        tiers = [
            {"name": "primary", "instances": [{"name": "a", "address": address, "capacity": 10}]},
            {"name": "static", "answer": {"json": {}}},
        ]
        config = tmp_path / "config.yaml"
        policy = {"recovery": {"hold_s": 1.0, "startup_s": 0.0}}
        config.write_text(
            yaml.safe_dump({"models": [{"name": "chat", "tiers": tiers}], "policy": policy})
        )
        server = await stack.enter_async_context(running_server(config, tmp_path / "state"))
        agent = {
            "node": "host-1",
            "control_plane": {"address": server.target},
            "instances": [
                {"name": "a", "url": f"http://{address}", "engine": "vllm", "probe_model": "m"}
            ],
            "token_probe": {"enabled": True, "interval_s": 0.3, "deadline_s": 0.2},
            "gpu": {"backend": "none"},
            "admin": "127.0.0.1:0",
        }
        await stack.enter_async_context(running_agent(agent, tmp_path / "agent.yaml"))
        await server.event("server_warm", cause="telemetry")

        async def asked() -> bool:
            return engine.requests >= 3

        await eventually(asked, what="tokens")
        assert (await server.get_json("/debug/explain?subject=a"))["state"] == "healthy"
        engine.mode = "hang"
        down = await server.event("instance_down", instance="a")
        assert down["rule"] == "token_late"
        told = await server.get_json("/debug/explain?subject=a")
        assert (told["state"], told["weight"], told["ceiling"]) == ("down", 0, 0.0)
        expected = "It gets nothing: its engine has nothing to do and yet gives no token (asked for one token: "
        assert told["sentence"].startswith(expected)
        engine.mode = "ok"
        back = await server.event("instance_recovering", instance="a")
        assert back["after"] == "recovering/0"
        assert (await server.get_json("/debug/explain?subject=a"))["ceiling"] == 0.1
        await server.event("instance_healthy", instance="a")
