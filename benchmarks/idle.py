"""A hundred proxies, agents that report no change, and a minute in which nothing may be pushed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fanout import connect, write_setup
from benchmarks.rig import Child

PROXIES = 100


def run(*, quick: bool) -> dict[str, Any]:
    """Count pushes and CPU while nothing changes; the process without proxies is the baseline."""
    seconds = 10 if quick else 60
    with tempfile.TemporaryDirectory() as folder:
        setup = write_setup(Path(folder))
        server = Child("benchmarks.plane", "--models", "10", "--per-tier", "13")
        with server:
            port = server.hear()["port"]
            time.sleep(3)
            cpu = server.cpu_s()
            time.sleep(10)
            alone = (server.cpu_s() - cpu) / 10
            with connect(port, streams=PROXIES, delta=False, setup=setup) as client:
                client.ask(do="wait_configured")
                time.sleep(3)
                client.ask(do="collect")
                cpu = server.cpu_s()
                time.sleep(seconds)
                used = (server.cpu_s() - cpu) / seconds
                arrivals = client.ask(do="collect")["arrivals"]
    return {
        "seconds": seconds,
        "proxies": PROXIES,
        "pushes": sum(len(times) for times in arrivals.values()),
        "core_share": used,
        "core_share_without_proxies": alone,
    }
