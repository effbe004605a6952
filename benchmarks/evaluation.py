"""What one thought of the brain costs: all endpoints with news, and one among many.

`evaluate_ms` decides upon a fleet in which every endpoint has a new sample and every weight moves, the worst
case, and `observe_ms` takes those samples in before; in the server they arrive over a second, not at once.
`quiet_ms` takes in a new sample of every endpoint when nothing moves, an ordinary second; `settle_ms` is all
the evaluations together in which such samples are decided upon afterwards, spread over half a second, and
`settle_worst_ms` the dearest of them. `one_ms` takes one new sample in and decides, and models that it does
not concern must cost nothing: their plans are the same objects and their resources the same bytes (checked
here, not only timed). `baseline_ms` is a bare loop over the same samples that only adds up two fields. Freeing
what the step before left behind is not in the first three: `freeing_ms` is. The garbage collector is set as
the server sets it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from benchmarks.fleet import topology
from benchmarks.rig import spread
from xds_server.core.evaluate import evaluate, initial_state, observe
from xds_server.core.model import Topology
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineFacts, EngineState, GpuFacts, GpuHealth, MemoryKind, Sample
from xds_server.core.state import FleetState
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import ENDPOINT
from xds_server.xds.transport import tune_gc

PER_TIER = 25
TIERS_PER_MODEL = 2
CALM = 10
"""Rounds until what the moves before have spilled is taken back."""


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


def unmoved(news: list[Sample], *, at: float) -> list[Sample]:
    """Return the same samples one interval later: counters advance, nothing moves."""
    return [
        replace(
            sample,
            observed_at=at,
            engine=replace(
                sample.engine,
                finished_total=(sample.engine.finished_total or 0.0) + 1.0,
                generation_tokens_total=(sample.engine.generation_tokens_total or 0.0) + 100.0,
            ),
        )
        for sample in news
    ]


class Bench:
    """A fleet, its state, and a clock."""

    def __init__(self, endpoints: int) -> None:
        self.models = max(1, endpoints // (PER_TIER * TIERS_PER_MODEL))
        per_tier = endpoints // (self.models * TIERS_PER_MODEL)
        self.fleet = topology(models=self.models, per_tier=per_tier)
        self.policy = Policy()
        self.now = 1000.0
        self.state = initial_state(self.fleet, self.policy, self.now)

    def observe(self, news: list[Sample]) -> float:
        """Take samples in and return the time it took, in ms."""
        before = self.state
        started = time.perf_counter()
        self.state = observe(before, news, self.policy, self.now)
        return (time.perf_counter() - started) * 1e3

    def evaluate(self) -> tuple[Plan, float]:
        """Decide and return the plan and the time it took, in ms."""
        before = self.state
        started = time.perf_counter()
        self.state, plan = evaluate(before, self.policy, self.now)
        return plan, (time.perf_counter() - started) * 1e3

    def elapse(self, seconds: float) -> list[float]:
        """Let time pass, evaluating at every deadline; return the times it took, in ms."""
        end, times = self.now + seconds, []
        while self.state.deadline <= end:
            self.now = self.state.deadline
            times.append(self.evaluate()[1])
        self.now = end
        return times


def _freed(old: list[FleetState]) -> float:
    """Let go of the states before, and return the time it took, in ms."""
    started = time.perf_counter()
    old.clear()
    return (time.perf_counter() - started) * 1e3


def case(endpoints: int, *, rounds: int) -> dict[str, Any]:
    """Measure one size of fleet."""
    bench = Bench(endpoints)
    decide, take, quiet, single, bare, free = [], [], [], [], [], []
    settle, worst = [], []
    for step in range(rounds):
        bench.elapse(1.0)
        news = samples(bench.fleet, at=bench.now, step=step)
        started = time.perf_counter()
        total = 0.0
        for sample in news:
            total += (sample.engine.kv_ratio or 0) + (sample.engine.waiting or 0)
        bare.append((time.perf_counter() - started) * 1e3)
        old = [bench.state]
        take.append(bench.observe(news))
        freed = _freed(old)
        old = [bench.state]
        decide.append(bench.evaluate()[1])
        free.append(freed + _freed(old))
    for _ in range(CALM + rounds):
        times = bench.elapse(1.0)
        settle.append(sum(times))
        worst.append(max(times, default=0.0))
        news = unmoved(news, at=bench.now)
        quiet.append(bench.observe(news))
    builder = SnapshotBuilder(bench.fleet, bench.policy, Capability.COMPOSITE)
    plan, _ = bench.evaluate()
    before = builder.build(plan).of_type(ENDPOINT).resources
    untouched = 0
    for step in range(rounds):
        bench.now += 0.001
        took = bench.observe(samples(bench.fleet, at=bench.now, step=rounds + step)[:1])
        moved, decided = bench.evaluate()
        single.append(took + decided)
        untouched = sum(a is b for a, b in zip(plan.models, moved.models, strict=True))
        plan = moved
    after = builder.build(plan).of_type(ENDPOINT).resources
    return {
        "endpoints": endpoints,
        "models": bench.models,
        "evaluate_ms": spread(decide[1:]),
        "observe_ms": spread(take[1:]),
        "freeing_ms": spread(free[1:]),
        "quiet_ms": spread(quiet[CALM:]),
        "settle_ms": spread(settle[CALM:]),
        "settle_worst_ms": spread(worst[CALM:]),
        "one_ms": spread(single),
        "baseline_ms": spread(bare[1:]),
        "models_untouched": untouched,
        "clusters_with_same_bytes": sum(before[name] is after[name] for name in before),
        "clusters": len(before),
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure 100, 1,000 and 10,000 endpoints."""
    tune_gc()
    return {"cases": [case(n, rounds=5 if quick else 31) for n in (100, 1000, 10_000)]}
