"""Log entries in: what one costs, and that a thousand proxies that log do not hold the control plane up.

Three cases of 5,000 entries/s: few busy workers (50 streams, 5 messages/s of 20), many quiet ones (1,000
streams, 1 message/s of 5), and many that send each entry by itself. `budget` is the product as it is configured by default, `all` reads whatever comes,
and `bare` is a server that only reads and parses. `held_up_ms` is how long the event loop was held up at worst, which is
what a push would have waited; `core_share` is of one core.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.rig import Child
from xds_server.core.policy import EvidencePolicy

CASES = {
    "50_streams_5hz_20": {"streams": 50, "hz": 5.0, "entries": 20},
    "1000_streams_1hz_5": {"streams": 1000, "hz": 1.0, "entries": 5},
    "1000_streams_5hz_1": {"streams": 1000, "hz": 5.0, "entries": 1},
}
BUDGET = EvidencePolicy().entries_per_second
SERVERS = {"budget": [f"--entries-per-second={BUDGET}"], "all": [], "bare": ["--bare"]}
SETTLE_S = 4.0


def one(flags: list[str], case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run one load against one server."""
    with Child("benchmarks.log_server", *flags) as server:
        port = server.hear()["port"]
        arguments = [f"--{name}={value}" for name, value in case.items()]
        load = Child(
            "benchmarks.load.log_client",
            *(f"--port={port}", f"--seconds={seconds + SETTLE_S + 1}", *arguments),
        )
        with load:
            time.sleep(SETTLE_S)  # everyone is connected
            before, cpu = server.ask(do="look"), server.cpu_s()
            time.sleep(seconds)
            cpu = server.cpu_s() - cpu
            after = server.ask(do="look")
            sent = load.hear()
    entries = after["entries"] - before["entries"]
    return {
        "entries_per_s": entries / seconds,
        "core_share": cpu / seconds,
        "us_per_entry": 1e6 * cpu / max(1.0, entries),
        "held_up_ms": after["held_up_ms"],
        **sent,
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure every case, product and baseline in turn."""
    seconds, rounds = (3.0, 1) if quick else (10.0, 3)
    return {
        name: {
            server: [one(flags, case, seconds) for _ in range(rounds)]
            for server, flags in SERVERS.items()
        }
        for name, case in CASES.items()
    }
