"""The brain on a manual clock: feed it, let time pass, look at what it decided."""

from __future__ import annotations

from collections.abc import Iterable

from xds_server.core.evaluate import evaluate, initial_state, observe, retarget
from xds_server.core.inputs import Drain, Input
from xds_server.core.model import (
    Instance,
    InstanceId,
    Model,
    ModelName,
    StaticAnswer,
    Tier,
    TierName,
    Topology,
)
from xds_server.core.plan import Event, InstancePlan, ModelPlan, Plan, TierPlan
from xds_server.core.policy import Policy
from xds_server.core.sample import (
    EngineFacts,
    EngineState,
    GpuFacts,
    GpuHealth,
    MemoryKind,
    Sample,
)
from xds_server.core.state import FleetState

GIB = 1 << 30
ALL = ("a", "b", "c", "f")
"""The instances of `small_fleet`."""


def instance(name, *, capacity=40.0, port=None):
    return Instance(
        id=InstanceId(name),
        host="127.0.0.1",
        port=port or 8000 + sum(name.encode()) % 1000,
        capacity=capacity,
    )


def tier(name, *names, capacity=40.0, capacities=None):
    sizes = capacities or [capacity] * len(names)
    return Tier(
        name=TierName(name),
        serves=f"model-of-{name}",
        instances=tuple(instance(n, capacity=c) for n, c in zip(names, sizes, strict=True)),
    )


STATIC = Tier(name=TierName("static"), serves="", answer=StaticAnswer())


def model(name, *tiers):
    return Model(name=ModelName(name), tiers=(*tiers, STATIC))


def topology(*models):
    return Topology(models=models)


def small_fleet():
    """Three instances of 40 slots, one of 20 in the fallback, a static answer."""
    return topology(
        model("chat", tier("primary", "a", "b", "c"), tier("fallback", "f", capacity=20.0))
    )


def sample(name, at, *, state=EngineState.UP, gpu=None, draining=False, **engine):
    facts = {"kv_ratio": 0.4, "waiting": 0.0, "running": 10.0, "finished_total": 2.0 * at} | engine
    return Sample(
        instance=InstanceId(name),
        observed_at=at,
        engine=EngineFacts(state=state, **facts),
        gpu=gpu,
        draining=draining,
    )


def gpu(health=GpuHealth.OK, *, ratio=0.92, free=6 * GIB, kind=MemoryKind.DEDICATED, shared=False):
    return GpuFacts(
        health=health,
        memory_kind=kind,
        vram_ratio=ratio,
        vram_free_bytes=free,
        shared=shared,
    )


def step(
    state: FleetState, inputs: Iterable[Input], policy: Policy, now: float
) -> tuple[FleetState, Plan]:
    """Take in what arrived and decide, both at the same moment."""
    return evaluate(observe(state, list(inputs), policy, now), policy, now)


class Brain:
    """One fleet, evaluated exactly when it asks to be and when something arrives."""

    def __init__(self, fleet: Topology, policy: Policy | None = None, *, now: float = 0.0) -> None:
        self.policy = policy or Policy()
        self.now = now
        self.state = initial_state(fleet, self.policy, now)
        self.events: list[tuple[float, Event]] = []
        self.plan: Plan = self._evaluate([])
        self.plans: list[tuple[float, Plan]] = [(now, self.plan)]

    def feed(self, *inputs: Input, at: float | None = None) -> Plan:
        """Let time pass until `at`, then take the inputs."""
        if at is not None:
            self.until(at)
        return self._note(self._evaluate(inputs))

    def until(self, at: float) -> Plan:
        """Let time pass, waking at every deadline."""
        while self.plan.next_deadline is not None and self.plan.next_deadline <= at:
            assert self.plan.next_deadline > self.now, "a deadline in the past would be a busy loop"
            self.now = self.plan.next_deadline
            self._note(self._evaluate([]))
        self.now = at
        return self.plan

    def run(self, names: Iterable[str], *, until: float, every: float = 1.0, **facts) -> Plan:
        """Feed unremarkable samples of these instances, one per `every`, up to `until`."""
        at = self.now
        while at + every <= until + 1e-9:
            at += every
            self.feed(*[sample(name, at, **facts) for name in names], at=at)
        return self.plan

    def retarget(self, fleet: Topology) -> None:
        self.state = retarget(self.state, fleet, self.policy, self.now)
        self._note(self._evaluate([]))

    def drain(self, name: str, draining: bool = True, who: str = "ann", why: str = "") -> Plan:
        return self.feed(
            Drain(instance=InstanceId(name), draining=draining, who=who, why=why), at=self.now
        )

    def model(self, name: str = "chat") -> ModelPlan:
        return next(m for m in self.plan.models if m.name == name)

    def tier(self, name: str = "primary", model: str = "chat") -> TierPlan:
        return next(t for t in self.model(model).tiers if t.name == name)

    def instance(self, name: str) -> InstancePlan:
        return next(
            i for m in self.plan.models for t in m.tiers for i in t.instances if i.id == name
        )

    def weights(self, name: str = "primary") -> dict[str, int]:
        return {i.id: i.weight for i in self.tier(name).instances}

    def named(self, name: str) -> list[tuple[float, Event]]:
        return [(at, event) for at, event in self.events if event.name == name]

    def _note(self, plan: Plan) -> Plan:
        self.plans.append((self.now, plan))
        return plan

    def _evaluate(self, inputs) -> Plan:
        self.state, self.plan = step(self.state, inputs, self.policy, self.now)
        self.events += [(self.now, event) for event in self.plan.events]
        return self.plan


def warm(fleet=None, *, names=ALL, until=10.0, policy=None) -> Brain:
    """Return a brain that has heard unremarkable samples for a while; by default of `small_fleet`."""
    brain = Brain(fleet or small_fleet(), policy)
    brain.run(names, until=until)
    return brain
