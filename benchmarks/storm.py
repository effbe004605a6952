"""Every proxy reconnects at once: how long until all are configured, and is any lost.

The default limits of gRPC's core cancel 2-20 % of the streams when more than 1,000 connect together;
with the server's settings none may be.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.fanout import SERVERS, connect, start, write_setup
from benchmarks.rig import spread


def run(*, quick: bool) -> dict[str, Any]:
    """Measure 1,000 and 5,000 streams; SotW, as Envoy reconnects by default."""
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        setup = write_setup(Path(folder))
        for streams, pairs in ((300, 1),) if quick else ((1000, 5), (5000, 3)):
            runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for _ in range(pairs):
                for server in SERVERS:
                    child, port = start(server, setup)
                    with child, connect(port, streams=streams, delta=False, setup=setup) as client:
                        runs[server].append(client.ask(do="wait_configured"))
            ours, bare = runs["gpu-xds"], runs["bare"]
            cases.append(
                {
                    "streams": streams,
                    "seconds": spread([run["seconds"] for run in ours]),
                    "bare_seconds": spread([run["seconds"] for run in bare]),
                    "ratio": spread(
                        [a["seconds"] / b["seconds"] for a, b in zip(ours, bare, strict=True)]
                    ),
                    "lost": sum(run["lost"] for run in ours),
                    "bare_lost": sum(run["lost"] for run in bare),
                }
            )
    return {"cases": cases}
