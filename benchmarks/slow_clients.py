"""Ten of 500 proxies stop reading while weights change 50 times a second for ten seconds.

One response in flight per stream and latest-wins mean that the others do not notice, memory does not
grow, and a proxy that reads again ends on the last version.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fanout import SERVERS, connect, start, write_setup
from benchmarks.rig import Child, percentile
from xds_server.resources.snapshot import ENDPOINT

STREAMS, STALLED = 500, 10


def _latencies(client: Child, pushes: list[dict[str, Any]]) -> tuple[list[float], int]:
    """Return latencies of what arrived, and how many streams got the last version."""
    arrivals = client.ask(do="collect")["arrivals"]
    times = [at - each["at"] for each in pushes for at in arrivals.get(each["version"], [])]
    return times, len(arrivals.get(pushes[-1]["version"], []))


def one(server: str, *, setup: Path, stalled: int, seconds: float) -> dict[str, Any]:
    """Run the change storm against one server."""
    child, port = start(server, setup)
    with child, connect(port, streams=STREAMS, delta=False, setup=setup) as client:
        client.ask(do="wait_configured")
        child.ask(do="storm", type_url=ENDPOINT, hz=50, seconds=1)  # warm
        time.sleep(1)
        client.ask(do="collect")
        client.ask(do="stall", count=stalled)
        before, cpu = child.rss_bytes(), child.cpu_s()
        pushes = child.ask(do="storm", type_url=ENDPOINT, hz=50, seconds=seconds)["pushes"]
        cpu = child.cpu_s() - cpu
        time.sleep(1)
        times, on_last = _latencies(client, pushes)
        grown = child.rss_bytes() - before
        client.ask(do="resume")
        deadline = time.monotonic() + 20
        while on_last < STREAMS and time.monotonic() < deadline:
            time.sleep(0.2)
            on_last += _latencies(client, pushes)[1]
    return {
        "stalled": stalled,
        "p50_ms": percentile(times, 0.5) * 1e3,
        "p99_ms": percentile(times, 0.99) * 1e3,
        "delivered": len(times),
        "rss_growth_mb": grown / 1e6,
        "cpu_s": cpu,
        "on_last_version": on_last,
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Compare with and without stalled clients; the bare server is run beside it."""
    seconds, pairs = (2.0, 1) if quick else (10.0, 3)
    with tempfile.TemporaryDirectory() as folder:
        setup = write_setup(Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {}
        for _ in range(pairs):
            for server in SERVERS:
                for stalled in (0, STALLED):
                    runs.setdefault(f"{server}/{stalled}", []).append(
                        one(server, setup=setup, stalled=stalled, seconds=seconds)
                    )
    moved = [
        b["p99_ms"] / a["p99_ms"]
        for a, b in zip(runs["gpu-xds/0"], runs[f"gpu-xds/{STALLED}"], strict=True)
    ]
    return {"streams": STREAMS, "p99_ratio_stalled_to_not": sorted(moved), "runs": runs}
