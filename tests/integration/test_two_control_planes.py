"""The bootstrap of deploy/kubernetes with a real Envoy and both of its control planes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.xds_process import XdsProcess, running_server

ROOT = Path(__file__).resolve().parents[2]
FLEET = {
    "listener": {"address": "127.0.0.1", "port": 0},
    "models": [
        {
            "name": "chat",
            "tiers": [
                {"name": "primary", "instances": [{"name": "a", "address": "127.0.0.1:9"}]},
                {"name": "static", "answer": {"status": 200, "json": {"choices": []}}},
            ],
        }
    ],
}


def bootstrap(ports: list[int]) -> dict:
    """Return the file as it is, but for the addresses that exist in a cluster alone."""
    document = yaml.safe_load((ROOT / "deploy/kubernetes/envoy-bootstrap.yaml").read_text())
    (cluster,) = document["static_resources"]["clusters"]
    for port, group in zip(ports, cluster["load_assignment"]["endpoints"], strict=True):
        (endpoint,) = group["lb_endpoints"]
        socket = endpoint["endpoint"]["address"]["socket_address"]
        socket |= {"address": "127.0.0.1", "port_value": port}
    (options,) = cluster["typed_extension_protocol_options"].values()
    # Seconds instead of minutes until a stream is opened anew.
    options["common_http_protocol_options"]["max_stream_duration"] = "2s"
    return document


async def proxies(server: XdsProcess) -> int:
    return len(await server.get_json("/debug/syncz"))


@pytest.mark.envoy
@pytest.mark.slow
async def test_proxies_use_the_first_and_go_to_the_second_while_it_is_gone(tmp_path):
    config = tmp_path / "fleet.yaml"
    config.write_text(yaml.safe_dump(FLEET))
    flags = ["--grace-s", "0.1"]
    async with (
        running_server(config, tmp_path / "0", flags) as first,
        running_server(config, tmp_path / "1", flags) as second,
    ):
        await first.event("server_warm")
        await second.event("server_warm")
        ports = [first.xds_port, second.xds_port]
        async with running_envoy(bootstrap(ports), tmp_path / "envoy") as envoy:

            async def on(server: XdsProcess) -> bool:
                return await proxies(server) == 1

            # Whichever passes its health check first is taken at the start; the first is returned to.
            await eventually(lambda: on(first), what="the proxy at the first")
            await first.stop(signal.SIGKILL)
            await eventually(lambda: on(second), what="the proxy at the second")
            # What it had it keeps: the same listener, nothing refused.
            assert await envoy.stat("listener_manager.total_listeners_active") >= 1
            assert await envoy.stat("cluster_manager.cds.update_rejected") == 0
