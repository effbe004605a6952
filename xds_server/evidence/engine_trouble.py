"""What goes wrong inside engines, per tier: requests that did not fit the KV cache, and restart loops.

Agents see it, not proxies; it stands beside what proxies see because both answer the same question.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from xds_server.core.model import InstanceId, ModelName, TierName, Topology
from xds_server.core.plan import FaultState, Plan
from xds_server.core.sample import Sample
from xds_server.observability.metrics import Reading

LOOP_CAUSES = frozenset({"out_of_memory", "engine_restarted", "engine_down"})
"""Causes of a quarantine that are a loop of restarts: an engine that was down several times came back between, which an
agent tells as `engine_restarted` only where it happened between two scrapes."""
STEPS = 12
_Tier = tuple[ModelName, TierName]


class AllocationFailures:
    """How often engines put a running request back because its KV cache could not grow (preemptions)."""

    def __init__(self) -> None:
        self._totals: dict[InstanceId, float] = {}
        self._steps: deque[tuple[float, dict[_Tier, float]]] = deque(maxlen=STEPS + 1)

    def step(self, topology: Topology, latest: Mapping[InstanceId, Sample], now: float) -> None:
        """Take note of every counter; to be called in equal steps.

        A counter that fell started again from zero. Instances that say nothing add nothing, and a tier of
        which none says anything has no rate.
        """
        added: dict[_Tier, float] = {}
        totals: dict[InstanceId, float] = {}
        for model, tier, instance in topology.instances():
            sample = latest.get(instance.id)
            total = None if sample is None else sample.engine.preemptions_total
            if total is None:
                continue
            totals[instance.id] = total
            before = self._totals.get(instance.id, total)
            key = (model.name, tier.name)
            added[key] = added.get(key, 0.0) + (total - before if total >= before else total)
        self._totals = totals
        self._steps.append((now, added))

    def readings(self) -> Iterator[Reading]:
        """Yield the rates per second over the steps that are remembered."""
        if len(self._steps) < 2:
            return
        began, ended = self._steps[0][0], self._steps[-1][0]
        if ended <= began:
            return
        sums: dict[_Tier, float] = {}
        for _, added in list(self._steps)[1:]:
            for key, count in added.items():
                sums[key] = sums.get(key, 0.0) + count
        for key, count in sums.items():
            yield "fleet_kv_cache_allocation_failure_rate", key, count / (ended - began)


def restart_loops(plan: Plan | None) -> Iterator[Reading]:
    """Yield how many instances of each tier are quarantined for restarts or for lack of memory."""
    for model in plan.models if plan else ():
        for tier in model.tiers:
            if not tier.instances:
                continue
            looping = sum(
                each.state is FaultState.QUARANTINED and each.rule in LOOP_CAUSES
                for each in tier.instances
            )
            yield "fleet_oom_restart_loop_count", (model.name, tier.name), float(looping)


def unwell(plan: Plan | None) -> Iterable[InstanceId]:
    """Return the instances of whose success the brain waits to hear."""
    return [
        each.id
        for model in (plan.models if plan else ())
        for tier in model.tiers
        for each in tier.instances
        if each.state is not FaultState.HEALTHY
    ]
