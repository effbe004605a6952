"""A fleet that lives through a troubled time, and its recording."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from xds_server.config.load import load_text
from xds_server.core.inputs import Drain, Evidence, Force
from xds_server.core.model import ClassName, InstanceId, ModelName, TierName
from xds_server.core.plan import Plan
from xds_server.core.sample import EngineFacts, EngineState, GpuFacts, Sample
from xds_server.fleet import Fleet
from xds_server.recording.format import (
    Digests,
    Head,
    end_line,
    head_line,
    step_lines,
)

CONFIG = """
classes:
  - {name: core, match: {header: x-tier, value: core}, demand_ratio: 0.2}
  - {name: rest}
models:
  - name: chat
    tiers:
      - name: primary
        serves: big
        instances:
          - {name: a0, address: "10.0.0.1:80", capacity: 40}
          - {name: a1, address: "10.0.0.2:80", capacity: 40}
      - name: fallback
        serves: small
        instances: [{name: l0, address: "10.0.0.3:80", capacity: 20}]
      - {name: static, answer: {json: {busy: true}}}
"""
CHAT = ModelName("chat")


def config(text: str = CONFIG):
    return load_text(text, source="test")


def sample(name: str, at: float, **facts) -> Sample:
    gpu = facts.pop("gpu", None)
    values = {"state": EngineState.UP, "kv_ratio": 0.3, "waiting": 0.0, "running": 4.0}
    return Sample(
        instance=InstanceId(name), observed_at=at, engine=EngineFacts(**(values | facts)), gpu=gpu
    )


def drive(fleet: Fleet, *, start: float, seconds: int, seed: int = 1) -> list[Plan]:
    """Give a fleet a troubled time: overload, an engine that dies, a drain, evidence, classes."""
    rng = random.Random(seed)
    plans = []
    finished = 0.0
    for tick in range(seconds * 4):
        now = start + tick / 4
        finished += rng.random() * 3
        pressed = 0.2 < tick / (seconds * 4) < 0.6
        inputs: list = [
            sample(
                name,
                now - rng.random() / 100,
                kv_ratio=0.9 + rng.random() / 10 if pressed else rng.random() / 2,
                waiting=rng.random() * 50 if pressed else 0.0,
                finished_total=finished,
                state=EngineState.DOWN
                if name == "a1" and tick % 40 in (10, 11, 12)
                else EngineState.UP,
                gpu=GpuFacts(vram_ratio=rng.random(), vram_free_bytes=5),
            )
            for name in ("a0", "a1", "l0")
        ]
        if tick == 5:
            inputs.append(Drain(instance=InstanceId("l0"), draining=True, who="ann", why="ö"))
        if tick == 30:
            inputs.append(
                Evidence(instance=InstanceId("a0"), observed_at=now, cause="proxies_see_failures")
            )
        if tick == 50:
            tier = TierName("fallback")
            inputs.append(Force(model=CHAT, tier=tier, who="ann", why="why", until=now + 2.0))
        if tick % 7 == 0:
            counts = {ClassName("core"): rng.random() * 40, ClassName("rest"): 50.0}
            fleet.saw_requests(CHAT, counts, now)
        plans.append(fleet.evaluate(inputs, now))
    return plans


def written(path: Path, fleet: Fleet, run, *, start: float = 100.0, end: str | None = "") -> list:
    """Record what `run` does with a fleet; return the steps."""
    steps: list = []
    head = Head(
        start=start,
        unix_s=1.8e9,
        config_version="abc",
        topology=fleet.topology,
        policy=fleet.policy,
        memory=fleet.remember(),
    )
    text = head_line(head)
    fleet.watchers.append(steps.append)
    run(fleet)
    fleet.watchers.remove(steps.append)
    text += step_lines(steps, Digests())
    if end is not None:
        text += end_line(end)
    path.write_bytes(gzip.compress(text))
    return steps
