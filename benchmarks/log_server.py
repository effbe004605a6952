"""The log service alone, as `xds-server` serves it, or its baseline: a server that reads, parses and forgets."""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from typing import Any

import grpc
from envoy.service.accesslog.v3 import als_pb2

from benchmarks.commands import obey, say
from xds_server.core.model import (
    Instance,
    InstanceId,
    Model,
    ModelName,
    StaticAnswer,
    Tier,
    TierName,
    Topology,
)
from xds_server.core.policy import EvidencePolicy, Policy
from xds_server.evidence.intake import Intake
from xds_server.evidence.server import ALS_SERVICE, EvidenceServer
from xds_server.fleet import Fleet
from xds_server.observability.metrics import Tally
from xds_server.xds.transport import make_server, tune_gc

INSTANCES = 100
FIRST_PORT = 8001
STEP_S = 0.005


def topology() -> Topology:
    """Return one model whose instances are at 127.0.0.1, from `FIRST_PORT` on."""
    instances = tuple(
        Instance(id=InstanceId(f"i{n}"), host="127.0.0.1", port=FIRST_PORT + n, capacity=10.0)
        for n in range(INSTANCES)
    )
    primary = Tier(name=TierName("primary"), serves="big", instances=instances)
    static = Tier(name=TierName("static"), serves="", answer=StaticAnswer())
    return Topology(models=(Model(name=ModelName("chat"), tiers=(primary, static)),))


def ours(entries_per_second: float, tally: Tally) -> list[Any]:
    """Return the product's handlers."""
    policy = Policy(evidence=EvidencePolicy(entries_per_second=entries_per_second))
    fleet = Fleet(topology(), policy, 0.0)
    intake = Intake(fleet=lambda: fleet, offer=lambda _: None, clock=time.monotonic, tally=tally)
    return EvidenceServer(
        intake=intake,
        policy=lambda: policy.evidence,
        clusters=frozenset,
        is_known=lambda _: True,
        clock=time.monotonic,
        tally=tally,
    ).handlers()


def bare(tally: Tally) -> list[Any]:
    """Return the baseline's handlers."""

    async def read(_: Any, context: Any) -> bytes:
        while (raw := await context.read()) is not grpc.aio.EOF:
            message = als_pb2.StreamAccessLogsMessage.FromString(raw)
            tally.add("fleet_evidence_entries_total", by=len(message.http_logs.log_entry))
        return b""

    handler = grpc.stream_unary_rpc_method_handler(read)
    return [grpc.method_handlers_generic_handler(ALS_SERVICE, {"StreamAccessLogs": handler})]


async def serve() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--entries-per-second", type=float, default=math.inf)
    arguments = parser.parse_args()
    tally = Tally()
    per_second = min(arguments.entries_per_second, 1e12)
    server = make_server()
    server.add_generic_rpc_handlers(bare(tally) if arguments.bare else ours(per_second, tally))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tune_gc()
    say({"port": port})
    held_up = 0.0

    async def watch() -> None:
        """Note for how long the loop is held up: that is what a push would wait."""
        nonlocal held_up
        while True:
            began = time.monotonic()
            await asyncio.sleep(STEP_S)
            held_up = max(held_up, time.monotonic() - began - STEP_S)

    async def look(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal held_up
        worst, held_up = held_up, 0.0
        entries = tally.count("fleet_evidence_entries_total")
        return {"entries": entries, "held_up_ms": round(1e3 * worst, 1)}

    watching = asyncio.create_task(watch(), name="watch")
    await obey({"look": look})
    watching.cancel()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
