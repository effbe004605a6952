"""N workers of proxies in one process: each keeps a log stream and sends messages at a fixed rate.

A message that flow control holds back makes those behind it count as dropped, as proxies drop what they cannot
send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

PATH = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
PER_CHANNEL = 4
"""Workers of one proxy; each of its threads has a connection, which costs the server little."""
NODE_BYTES = 60_000
"""An Envoy's node lists its 400 extensions; it is sent once per stream."""


def entry(port: int) -> accesslog_pb2.HTTPAccessLogEntry:
    """Return an entry of the size that Envoy sends for a request."""
    made = accesslog_pb2.HTTPAccessLogEntry(protocol_version="HTTP11")
    common = made.common_properties
    common.access_log_type = accesslog_pb2.AccessLogType.Value("DownstreamEnd")
    for address in (
        common.downstream_remote_address,
        common.downstream_local_address,
        common.downstream_direct_remote_address,
        common.upstream_local_address,
        common.upstream_remote_address,
    ):
        address.socket_address.address = "127.0.0.1"
        address.socket_address.port_value = port
    common.start_time.FromNanoseconds(time.time_ns())
    for time_field in (
        common.time_to_last_rx_byte,
        common.time_to_first_upstream_tx_byte,
        common.time_to_last_upstream_tx_byte,
        common.time_to_first_upstream_rx_byte,
        common.time_to_last_upstream_rx_byte,
        common.time_to_first_downstream_tx_byte,
        common.time_to_last_downstream_tx_byte,
        common.duration,
    ):
        time_field.FromMicroseconds(random.randrange(1_000_000, 2_000_000))
    common.time_to_first_upstream_tx_byte.FromMicroseconds(100)
    common.upstream_cluster, common.route_name = "chat/primary", "chat"
    common.upstream_request_attempt_count = 1
    common.stream_id = made.request.request_id = "6cfb2bd3-34be-44b2-b9d0-5d2c1d3f8e0a"
    made.request.path, made.request.authority = "/v1/chat/completions", "llm.example:10000"
    made.request.user_agent = "OpenAI/Python 1.99.0"
    made.response.response_code.value = 200
    made.response.response_code_details = "via_upstream"
    made.response.response_headers["x-served-model"] = "big"
    return made


def main() -> None:
    """Run from `benchmarks.rig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--entries", type=int, required=True)
    parser.add_argument("--hz", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    first = als_pb2.StreamAccessLogsMessage()
    first.identifier.node.id, first.identifier.log_name = "edge", "evidence"
    first.identifier.node.user_agent_name = "e" * NODE_BYTES
    logs = als_pb2.StreamAccessLogsMessage()
    logs.http_logs.log_entry.extend(entry(8001 + n % 100) for n in range(arguments.entries))
    raw, opening = logs.SerializeToString(), first.SerializeToString()
    counts = asyncio.run(_run(arguments, opening, raw))
    sys.stdout.write(json.dumps(counts) + "\n")


async def _run(arguments: argparse.Namespace, opening: bytes, raw: bytes) -> dict[str, int]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{arguments.port}", options=options)
        for _ in range(max(1, arguments.streams // PER_CHANNEL))
    ]
    counts = {"messages_sent": 0, "messages_dropped": 0}
    loop = asyncio.get_running_loop()
    end = loop.time() + arguments.seconds

    async def worker(number: int) -> None:
        call = channels[number % len(channels)].stream_unary(PATH)()
        await call.write(opening)
        due = loop.time() + random.random() / arguments.hz
        while due < end:
            await asyncio.sleep(max(0.0, due - loop.time()))
            await call.write(raw)
            counts["messages_sent"] += 1
            missed = max(0, int((loop.time() - due) * arguments.hz))
            counts["messages_dropped"] += missed
            due += (1 + missed) / arguments.hz
        call.cancel()

    await asyncio.gather(*(worker(number) for number in range(arguments.streams)))
    for channel in channels:
        await channel.close()
    return counts


if __name__ == "__main__":
    main()
