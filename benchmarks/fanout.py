"""One weight change to every stream: latency, CPU and memory, against the bare server.

A *push* is one change handed to the server; its latency per stream runs from before anything is built
until the response is read by the client. p50, p99 and worst are over the streams of one push; the
figures are medians over pushes. CPU per push is the server's user and system time divided by delivered
responses, so it contains the ACK. Product and baseline alternate, and ratios are taken per pair.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.fleet import Plans, topology
from benchmarks.messages import envoy_node
from benchmarks.rig import Child, percentile, spread
from xds_server.core.policy import Policy
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE

SERVERS = {"bare": "benchmarks.bare_server", "gpu-xds": "benchmarks.served"}
KINDS = {"rds": ROUTE, "eds": ENDPOINT}
DEADLINE_S = 30.0


def write_setup(folder: Path, *, models: int = 10, per_tier: int = 13) -> Path:
    """Write what client and bare server need to know: node, names, and the product's own bytes."""
    fleet = topology(models=models, per_tier=per_tier)
    snapshot = SnapshotBuilder(fleet, Policy(), Capability.COMPOSITE).build(Plans(fleet).plan)
    bodies = {
        type_url: [(r.name, r.body.hex()) for r in snapshot.of_type(type_url).resources.values()]
        for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE)
    }
    names = [name for name, _ in bodies[ENDPOINT]]
    target = folder / "setup.json"
    target.write_text(
        json.dumps({"node": envoy_node().hex(), "eds_names": names, "bodies": bodies})
    )
    return target


def sizes(setup: Path) -> dict[str, int]:
    """Return the bytes of all resources of each type."""
    bodies = json.loads(setup.read_text())["bodies"]
    return {
        url.rsplit(".", 1)[1]: sum(len(body) // 2 for _, body in pairs)
        for url, pairs in bodies.items()
    }


def start(server: str, setup: Path) -> tuple[Child, int]:
    """Start a server process and return it with its port."""
    arguments = ["--setup", str(setup)] if server == "bare" else []
    child = Child(SERVERS[server], *arguments)
    return child, int(child.hear()["port"])


def connect(port: int, *, streams: int, delta: bool, setup: Path) -> Child:
    """Start a client process; streams are connecting when it returns."""
    flags = ["--delta"] if delta else []
    return Child(
        "benchmarks.load.xds_client",
        *("--port", str(port), "--streams", str(streams), "--setup", str(setup)),
        *flags,
    )


def push(server: Child, client: Child, *, type_url: str, streams: int) -> list[float]:
    """Make one change and return the latency of every stream in seconds.

    Raises:
        TimeoutError: if a stream never got it.
    """
    sent = server.ask(do="push", type_url=type_url)
    got: list[float] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(got) < streams:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(got)} of {streams} streams got {sent['version']}")
        time.sleep(0.15)
        got += client.ask(do="collect")["arrivals"].get(sent["version"], [])
    return [at - sent["at"] for at in got]


def one(server: str, *, streams: int, delta: bool, setup: Path, pushes: int) -> dict[str, Any]:
    """Measure one server with one number of streams."""
    child, port = start(server, setup)
    with child:
        time.sleep(0.5)
        before_bytes, before_cpu = child.rss_bytes(), child.cpu_s()
        with connect(port, streams=streams, delta=delta, setup=setup) as client:
            storm = client.ask(do="wait_configured")
            result: dict[str, Any] = {
                "storm_s": storm["seconds"],
                "lost": storm["lost"],
                "storm_cpu_s": child.cpu_s() - before_cpu,
            }
            time.sleep(0.3)
            client.ask(do="collect")
            result["kb_per_stream"] = (child.rss_bytes() - before_bytes) / streams / 1024
            for kind, type_url in KINDS.items():
                push(child, client, type_url=type_url, streams=streams)  # warm
                cpu = child.cpu_s()
                times = [
                    push(child, client, type_url=type_url, streams=streams) for _ in range(pushes)
                ]
                result[kind] = {
                    "p50_ms": percentile([percentile(t, 0.5) for t in times], 0.5) * 1e3,
                    "p99_ms": percentile([percentile(t, 0.99) for t in times], 0.5) * 1e3,
                    "worst_ms": max(max(t) for t in times) * 1e3,
                    "cpu_us": (child.cpu_s() - cpu) / (pushes * streams) * 1e6,
                }
    return result


RATIOS = ("p50_ms", "p99_ms", "worst_ms", "cpu_us")


def compare(*, streams: int, delta: bool, setup: Path, pushes: int, pairs: int) -> dict[str, Any]:
    """Alternate baseline and product and return medians and ratios pair by pair."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(pairs):
        for server in SERVERS:
            runs[server].append(
                one(server, streams=streams, delta=delta, setup=setup, pushes=pushes)
            )
    paired = list(zip(runs["gpu-xds"], runs["bare"], strict=True))

    def summary(of: str) -> dict[str, Any]:
        table: dict[str, Any] = {
            key: spread([run[key] for run in runs[of]])
            for key in ("storm_s", "lost", "kb_per_stream")
        }
        for kind in KINDS:
            table[kind] = {key: spread([run[kind][key] for run in runs[of]]) for key in RATIOS}
        return table

    return {
        "streams": streams,
        "protocol": "delta" if delta else "sotw",
        "gpu-xds": summary("gpu-xds"),
        "bare": summary("bare"),
        "ratio": {
            "storm_s": spread([a["storm_s"] / b["storm_s"] for a, b in paired]),
            **{
                kind: {
                    key: spread([a[kind][key] / b[kind][key] for a, b in paired]) for key in RATIOS
                }
                for kind in KINDS
            },
        },
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure 100, 1,000 and 2,000 streams, SotW and delta."""
    counts = (100, 500) if quick else (100, 1000, 2000)
    pushes, pairs = (5, 1) if quick else (12, 3)
    with tempfile.TemporaryDirectory() as folder:
        setup = write_setup(Path(folder))
        return {
            "resource_bytes": sizes(setup),
            "cases": [
                compare(streams=n, delta=delta, setup=setup, pushes=pushes, pairs=pairs)
                for n in counts
                for delta in (False, True)
            ],
        }
