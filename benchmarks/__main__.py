"""`make bench`: run the benchmarks, print each result and, unless it is a quick look, write it to benchmarks/results/NAME.json.

Usage: python -m benchmarks [--quick] [NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
NAMES = (
    "closed_loop",
    "evaluation",
    "end_to_end",
    "request_cost",
    "endpoint_picker",
    "failover",
    "health_checks",
    "admission",
    "fanout",
    "storm",
    "telemetry",
    "evidence",
    "combined",
    "slow_clients",
    "idle",
    "istiod",
    "page",
)


def machine() -> dict[str, Any]:
    """Return what a reader must know to compare figures."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: one of {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        about, started = machine(), time.monotonic()
        result = importlib.import_module(f"benchmarks.{name}").run(quick=arguments.quick)
        about["seconds"] = round(time.monotonic() - started, 1)
        document = json.dumps({"benchmark": name, "machine": about, "result": result}, indent=1)
        print(document)
        if not arguments.quick and "skipped" not in result:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(document + "\n")


if __name__ == "__main__":
    main()
