"""Samples in: is the control plane ever behind.

Two cases: 10,000 samples/s (1,000 agents of ten instances at 1/s), and 1,000 agents of one instance at
1/s with nothing to push. The age runs from the agent's write until the brain takes the sample in. The
baseline is a bare grpc.aio server that only reads and parses the same messages.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.rig import Child

PER_TIER = 25


def one(module: str, *, agents: int, per_agent: int, seconds: float) -> dict[str, Any]:
    """Run one load against one server."""
    instances = agents * per_agent
    shape = ["--models", str(max(1, instances // (2 * PER_TIER))), "--per-tier", str(PER_TIER)]
    server = Child(module, *(shape if module == "benchmarks.plane" else []))
    with server:
        port = server.hear()["port"]
        load = Child(
            "benchmarks.load.agent_client",
            *("--port", str(port), "--agents", str(agents), "--per-agent", str(per_agent)),
            *("--seconds", str(seconds + 4)),
        )
        with load:
            time.sleep(4)  # everyone is connected, and the first evaluation is over
            server.ask(do="ages")
            cpu = server.cpu_s()
            time.sleep(seconds)
            ages = server.ask(do="ages")
            cpu = (server.cpu_s() - cpu) / seconds
            sent = load.hear()
    return {"core_share": cpu, "rate": ages["count"] / seconds, **ages, **sent}


def run(*, quick: bool) -> dict[str, Any]:
    """Measure both cases, product and baseline in turn."""
    seconds, rounds = (4.0, 1) if quick else (15.0, 3)
    cases = {}
    for name, agents, per_agent in (("10k_samples_s", 1000, 10), ("1k_agents_1hz", 1000, 1)):
        cases[name] = {
            short: [
                one(module, agents=agents, per_agent=per_agent, seconds=seconds)
                for _ in range(rounds)
            ]
            for short, module in (
                ("gpu-xds", "benchmarks.plane"),
                ("bare", "benchmarks.bare_ingest"),
            )
        }
    return cases
