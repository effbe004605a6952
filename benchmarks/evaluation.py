"""What one thought of the brain costs: all endpoints with news, and one among many.

`all_ms` evaluates a fleet in which every endpoint has a new sample; `one_ms` the same fleet with one new
sample, where models that it does not concern must cost nothing: their plans are the same objects and
their resources the same bytes (checked here, not only timed). `baseline_ms` is a bare loop over the same
samples that only adds up two fields.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.fleet import topology
from benchmarks.rig import spread
from xds_server.core.evaluate import evaluate, initial_state
from xds_server.core.model import InstanceId, Topology
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineFacts, EngineState, GpuFacts, GpuHealth, MemoryKind, Sample
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import ENDPOINT

PER_TIER = 25
TIERS_PER_MODEL = 2


def samples(fleet: Topology, *, at: float, step: int) -> list[Sample]:
    """Return one sample per instance; every number moves with `step`."""
    return [
        Sample(
            instance=instance.id,
            observed_at=at,
            engine=EngineFacts(
                state=EngineState.UP,
                kv_ratio=0.4 + ((step * 7 + index) % 40) / 100,
                waiting=float((step + index) % 3),
                running=float(10 + (step + index) % 20),
                finished_total=float(step * 10 + index),
                generation_tokens_total=float(step * 1000 + index),
                preemptions_total=0.0,
                slots=40,
            ),
            gpu=GpuFacts(
                health=GpuHealth.OK,
                memory_kind=MemoryKind.DEDICATED,
                vram_ratio=0.9,
                vram_free_bytes=8 << 30,
            ),
        )
        for index, (_, _, instance) in enumerate(fleet.instances())
    ]


def case(endpoints: int, *, rounds: int) -> dict[str, Any]:
    """Measure one size of fleet."""
    models = max(1, endpoints // (PER_TIER * TIERS_PER_MODEL))
    per_tier = endpoints // (models * TIERS_PER_MODEL)
    fleet, policy, now = topology(models=models, per_tier=per_tier), Policy(), 1000.0
    state = initial_state(fleet, policy, now)
    every, single, bare = [], [], []
    for step in range(rounds):
        now += 1
        news = samples(fleet, at=now, step=step)
        started = time.perf_counter()
        total = 0.0
        for sample in news:
            total += (sample.engine.kv_ratio or 0) + (sample.engine.waiting or 0)
        bare.append((time.perf_counter() - started) * 1e3)
        started = time.perf_counter()
        state, _ = evaluate(state, news, policy, now)
        every.append((time.perf_counter() - started) * 1e3)
    builder = SnapshotBuilder(fleet, policy, Capability.COMPOSITE)
    state, plan = evaluate(state, [], policy, now)
    before = builder.build(plan).of_type(ENDPOINT).resources
    untouched = 0
    for step in range(rounds):
        now += 0.001
        news = samples(fleet, at=now, step=rounds + step)[:1]
        started = time.perf_counter()
        state, moved = evaluate(state, news, policy, now)
        single.append((time.perf_counter() - started) * 1e3)
        untouched = sum(a is b for a, b in zip(plan.models, moved.models, strict=True))
        plan = moved
    after = builder.build(plan).of_type(ENDPOINT).resources
    same_bytes = sum(before[name] is after[name] for name in before)
    return {
        "endpoints": sum(1 for _ in fleet.instances()),
        "models": models,
        "all_ms": spread(every[1:]),
        "one_ms": spread(single),
        "baseline_ms": spread(bare[1:]),
        "models_untouched": untouched,
        "clusters_with_same_bytes": same_bytes,
        "clusters": len(before),
        "first_instance": InstanceId("i0"),
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure 100, 1,000 and 10,000 endpoints."""
    return {"cases": [case(n, rounds=5 if quick else 31) for n in (100, 1000, 10_000)]}
