"""A thousand proxies, a thousand agents, and a push to everybody every second, in one process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fanout import connect, push, write_setup
from benchmarks.rig import Child, percentile, spread
from xds_server.resources.snapshot import ENDPOINT

PROXIES, AGENTS = 1000, 1000


def settle(server: Child) -> None:
    """Wait until nothing was pushed for two seconds: everybody is known and configured.

    Raises:
        TimeoutError: after 30 s.
    """
    for _ in range(15):
        time.sleep(2)
        if server.ask(do="ages")["published"] == 0:
            return
    raise TimeoutError("it never became quiet")


def one(*, setup: Path, seconds: int) -> dict[str, Any]:
    """Run it once."""
    server = Child("benchmarks.plane", "--models", "20", "--per-tier", "25")
    with server:
        port = server.hear()["port"]
        time.sleep(1)
        client = connect(port, streams=PROXIES, delta=False, setup=setup)
        load = Child(
            "benchmarks.load.agent_client",
            *("--port", str(port), "--agents", str(AGENTS), "--seconds", str(seconds + 45)),
        )
        with client, load:
            client.ask(do="wait_configured")
            settle(server)
            client.ask(do="collect")
            cpu, started = server.cpu_s(), time.monotonic()
            times = []
            for number in range(seconds):
                time.sleep(max(0.0, started + number - time.monotonic()))
                times.append(push(server, client, type_url=ENDPOINT, streams=PROXIES))
            elapsed = time.monotonic() - started
            share = (server.cpu_s() - cpu) / elapsed
            ages = server.ask(do="ages")
    return {
        "core_share": share,
        "fanout_p50_ms": percentile([percentile(t, 0.5) for t in times], 0.5) * 1e3,
        "fanout_p99_ms": percentile([percentile(t, 0.99) for t in times], 0.5) * 1e3,
        "age_p99_ms": ages["p99_ms"],
        "samples_per_s": ages["count"] / elapsed,
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Repeat it."""
    seconds, rounds = (5, 1) if quick else (20, 3)
    with tempfile.TemporaryDirectory() as folder:
        setup = write_setup(Path(folder), models=20, per_tier=25)
        runs = [one(setup=setup, seconds=seconds) for _ in range(rounds)]
    return {key: spread([run[key] for run in runs]) for key in runs[0]}
