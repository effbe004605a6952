"""Every proxy gets the best that it can have, and the operator sees what it lacks."""

from __future__ import annotations

import grpc
import pytest
import yaml

from tests.fakes.envoy import eventually, running_envoy
from tests.fakes.orphan import Chain
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.xds_process import running_server
from tests.xds.wire import RawStream
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.snapshot import CLUSTER

OLD = {
    "id": "old",
    "user_agent_name": "envoy",
    "user_agent_version": "1.33.0",
    "extensions": [
        {"name": name}
        for name in (
            "envoy.clusters.aggregate",
            "envoy.bootstrap.internal_listener",
            "envoy.filters.http.header_mutation",
            "envoy.filters.http.header_to_metadata",
            "envoy.filters.http.custom_response",
            "envoy.filters.http.local_ratelimit",
            "envoy.access_loggers.http_grpc",
        )
    ],
}
GRPC = {"id": "client", "user_agent_name": "gRPC C-core linux"}


@pytest.mark.envoy
async def test_syncz_tells_what_each_proxy_lacks_and_each_gets_its_own_clusters(tmp_path):
    config = {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [Chain(tiers=[[ScriptedEngine("big", port=1)]], name="chat").document()],
    }
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(config))
    async with running_server(path, tmp_path / "state") as server:
        told = bootstrap(
            node_id="new", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
        )
        channel = grpc.aio.insecure_channel(server.target)
        async with (
            running_envoy(told, tmp_path / "envoy"),
            channel,
            RawStream(channel) as old,
            RawStream(channel) as client,
        ):
            bodies = {}
            for stream, node in ((old, OLD), (client, GRPC)):
                stream.node = node
                await stream.ask(CLUSTER)
                response = await stream.response()
                bodies[node["id"]] = b"".join(each.value for each in response.resources)
            assert b"envoy.clusters.aggregate" in bodies["old"]
            assert b"envoy.clusters.composite" not in bodies["old"]
            assert b"chain" not in bodies["client"], "gRPC has plain clusters"

            async def lacking():
                proxies = await server.get_json("/debug/syncz")
                return len(proxies) == 3 and {
                    each["proxy"]["id"]: (each["proxy"]["capability"], each["proxy"]["lacks"])
                    for each in proxies
                }

            found = await eventually(lacking)
            assert found["new"] == ("composite", [])
            capability, lacks = found["old"]
            assert capability == "aggregate"
            assert [each.partition(": ")[0] for each in lacks] == [
                "envoy.clusters.composite",
                "envoy.filters.http.lua",
                "envoy.filters.http.local_ratelimit",  # too old for retry-after
            ]
            capability, lacks = found["client"]
            assert capability == "grpc"
            assert any("static answers" in each for each in lacks)
