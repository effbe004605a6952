"""Limits across a kill of the whole control plane: a real server process, a real Envoy."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.xds_process import running_server
from xds_server.resources.bootstrap import bootstrap

pytestmark = pytest.mark.envoy


def written(folder: Path, port: int) -> Path:
    """One engine behind a limit of 1 token/s whose bucket holds 500."""
    instances = [{"name": "a", "address": f"127.0.0.1:{port}", "capacity": 4}]
    answer = {"json": {"choices": []}}
    document = {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [
            {
                "name": "chat",
                "limit": {"tokens_per_second": 1},
                "tiers": [
                    {"name": "primary", "instances": instances},
                    {"name": "static", "answer": answer},
                ],
            }
        ],
        "policy": {
            "admission": {"burst_s": 500, "largest_request_tokens": 1, "default_max_tokens": 1}
        },
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def test_a_killed_control_plane_neither_lifts_nor_refills_a_limit(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with (
        scripted_engine(ScriptedEngine("llama-3-70b")) as engine,
        aiohttp.ClientSession() as session,
    ):
        config = written(tmp_path, engine.port)
        flags = ["--grace-s", "0.2"]
        async with running_server(config, state, flags) as server:
            xds_port = server.xds_port
            proxy = bootstrap(
                node_id="one", cluster="test", xds_host="127.0.0.1", xds_port=xds_port
            )
            async with running_envoy(proxy, tmp_path / "envoy") as envoy:
                port = await envoy.listener_port("llm")

                async def admitted(count: int) -> int:
                    statuses = []
                    for _ in range(count):
                        url = f"http://127.0.0.1:{port}/v1/chat/completions"
                        async with session.post(url, json={"max_tokens": 90}) as response:
                            statuses.append(response.status)
                    assert set(statuses) <= {200, 429}
                    return statuses.count(200)

                async def is_kept() -> bool:
                    kept = json.loads((state / "plan.json").read_text())
                    return bool(kept["parts"] == {"one": 1.0})

                assert await admitted(7) == 5
                await eventually(is_kept, what="the part in the state file")

                async def is_told() -> bool:
                    return await server.metric("fleet_token_admission_load") > 0.0

                await eventually(is_told, what="the load of the limit")
                await server.stop(signal.SIGKILL)
                assert await admitted(2) == 0
                again = ["--xds-listen", f"127.0.0.1:{xds_port}", *flags]
                async with running_server(config, state, again) as second:

                    async def is_back() -> bool:
                        proxies = await second.get_json("/debug/syncz")
                        return "TypedExtensionConfig" in json.dumps(proxies)

                    await eventually(is_back, what="the proxy on the new server")
                    assert await admitted(2) == 0
                    assert await envoy.rejected() == {}
