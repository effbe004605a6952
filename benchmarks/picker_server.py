"""The endpoint picker in a process of its own, with a plan that gives every request to one engine."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from benchmarks.commands import obey, say
from benchmarks.picker_grpc import GrpcPickerServer
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
from xds_server.core.plan import (
    EndpointHealth,
    FaultState,
    Freshness,
    InstancePlan,
    Level,
    ModelPlan,
    Plan,
    Reason,
    TierPlan,
)
from xds_server.core.policy import Unreadable
from xds_server.istio.picker.decide import Desk, PickerOptions
from xds_server.istio.picker.server import PickerServer
from xds_server.observability.metrics import Tally
from xds_server.xds.transport import tune_gc

NOMINAL = Reason(rule="nominal", text="nominal")


def fleet(port: int, serves: str) -> tuple[Topology, Plan]:
    """Return one model with one instance, and the plan that gives it everything."""
    instance = Instance(id=InstanceId("engine"), host="127.0.0.1", port=port)
    tiers = (
        Tier(name=TierName("primary"), serves=serves, instances=(instance,)),
        Tier(name=TierName("static"), serves="", answer=StaticAnswer()),
    )
    planned = InstancePlan(
        id=instance.id,
        state=FaultState.HEALTHY,
        freshness=Freshness.FRESH,
        ceiling=1.0,
        weight=1000,
        health=EndpointHealth.HEALTHY,
        pressure=None,
        basis=NOMINAL,
    )
    plans = tuple(
        TierPlan(
            name=tier.name,
            level=Level.HEALTHY,
            pressure=None,
            share=0.0 if tier.is_static else 1.0,
            weight=0 if tier.is_static else 1000,
            spill=0.0,
            demand=None,
            capacity=None,
            reason=NOMINAL,
            instances=() if tier.is_static else (planned,),
        )
        for tier in tiers
    )
    name = ModelName("gpt-bench")
    topology = Topology(models=(Model(name=name, tiers=tiers),))
    return topology, Plan(models=(ModelPlan(name=name, tiers=plans),), next_deadline=None)


async def serve(port: int, serves: str, transport: str) -> None:
    """Serve until standard input closes; `transport` is `framed` (the product's own) or `grpc`."""
    desk = Desk(
        options=PickerOptions(),
        chance=random.random,
        tally=Tally(),
        unreadable=lambda: Unreadable.REFUSE,
    )
    desk.heard(*fleet(port, serves))
    server = PickerServer(desk) if transport == "framed" else GrpcPickerServer(desk)
    got = server.listen("127.0.0.1", 0)
    await server.start()
    tune_gc()
    say({"port": got})

    async def counted(_: Any) -> dict[str, Any]:
        return {"picked": desk.tally.count("fleet_picker_landings_total", "picked")}

    await obey({"count": counted})
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
