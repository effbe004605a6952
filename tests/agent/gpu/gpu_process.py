"""A small agent: reads GPUs on the worker, prints what it sees as JSON lines.

Under test here is everything below it. SIGTERM ends it, SIGUSR1 lets go of the driver and takes it up
again. `beat` lines come from the event loop every 50 ms, whatever the driver does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import resource
import signal
import sys
import time
from pathlib import Path

import structlog

from sidecar_agent.gpu.backend import GpuBackend, make_worker
from sidecar_agent.gpu.nvml import NvmlSettings, WrongBindingsError
from sidecar_agent.gpu.reduce import reduce_instances
from sidecar_agent.gpu.xid import XidPolicy

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


def say(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def describe(worker, kind):
    snapshot = worker.latest()
    groups = reduce_instances(snapshot, OPTIONS.get("instances", {}))
    age = None if snapshot.read_at is None else time.monotonic() - snapshot.read_at
    line = {"kind": kind, "age_s": age, "at": time.monotonic(), **dataclasses.asdict(snapshot)}
    line["gpus"] = {gpu["uuid"]: gpu for gpu in line["gpus"]}
    line["groups"] = {name: dataclasses.asdict(group) for name, group in groups.items()}
    line["files"] = len(list(Path("/proc/self/fd").iterdir()))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    line["resident"] = pages * resource.getpagesize()
    say(line)
    return snapshot


async def main():
    backend = GpuBackend(OPTIONS.get("backend", "nvml"))
    try:
        worker = make_worker(
            backend,
            interval_s=OPTIONS.get("interval_s", 0.05),
            deadline_s=OPTIONS.get("deadline_s", 0.5),
            xids=XidPolicy(hold_s=OPTIONS.get("hold_s", 60.0)),
            settings=NvmlSettings(
                backoff_base_s=OPTIONS.get("backoff_base_s", 0.1),
                backoff_cap_s=OPTIONS.get("backoff_cap_s", 0.2),
                restart_after=OPTIONS.get("restart_after", 5),
            ),
        )
    except WrongBindingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, done.set)
    turns = itertools.cycle((worker.release, worker.reacquire))

    def turn():
        next(turns)()

    loop.add_signal_handler(signal.SIGUSR1, turn)
    code = 0

    def changed():
        nonlocal code
        if describe(worker, "read").restart_needed:
            code = 75
            done.set()

    if OPTIONS.get("lines", True):
        worker.attach(loop, changed)
    worker.start()
    while not done.is_set():
        describe(worker, "beat")
        try:
            await asyncio.wait_for(done.wait(), 0.05)
        except TimeoutError:
            continue
    started = time.monotonic()
    let_go = worker.close()
    say({"kind": "end", "let_go": let_go, "took_s": time.monotonic() - started})
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
