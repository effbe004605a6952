"""A whole fleet in simulated seconds: clients, proxies, engines, agents and the control loop.

One heap of events, no threads, no clock: five minutes of a busy fleet take about a second. Every
random stream has its own seed, so that two controllers meet the same requests.

What the proxies do: a request draws a tier by the tier weights and an instance by the endpoint
weights, at random, as many independent proxies together do. A dead instance refuses the connection;
the request is tried on another instance of the tier, then on the next tier, as Envoy's retries and
its chain of priorities do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate
from random import Random

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
from xds_server.core.sample import Sample
from xds_server.simulation.control import Controller, Decision
from xds_server.simulation.engine import Engine, EngineSpec
from xds_server.simulation.workload import CHAT, Lengths, Profile, Request, arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An engine runs out of memory and takes time to load its model again."""

    at: float
    instance: str
    reload_s: float = 83.0
    """What vLLM took for a 70B model in the lab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """No telemetry arrives from anybody between two moments."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet and what happens to it."""

    tiers: tuple[tuple[EngineSpec, ...], ...]
    """Engines of each tier in chain order, without the static tier, which always comes last."""
    load: Profile
    """Offered load over time, in multiples of what the first tier can complete without slowdown."""
    duration_s: float
    lengths: Lengths = CHAT
    lag_s: float = 0.1
    """Age of a sample when it reaches the control loop."""
    interval_s: float = 0.5
    """How often an agent reads and sends."""
    push_s: float = 0.01
    """From a decision to the proxies that obey it."""
    crashes: tuple[Crash, ...] = ()
    silences: tuple[Silence, ...] = ()

    @property
    def capacity(self) -> float:
        """Requests/s that the first tier can complete with full slots."""
        return sum(spec.slots / spec.service_s(self.lengths) for spec in self.tiers[0])

    def topology(self) -> Topology:
        """Return the fleet as a user would configure it."""
        tiers = [
            Tier(
                name=TierName(f"tier-{tier}"),
                serves=f"model-{tier}",
                instances=tuple(
                    Instance(
                        id=InstanceId(name),
                        host=f"10.0.{tier}.{index + 1}",
                        port=8000,
                        capacity=float(spec.configured_slots or spec.slots),
                    )
                    for index, (name, spec) in enumerate(zip(names, specs, strict=True))
                ),
            )
            for tier, (names, specs) in enumerate(zip(self.names(), self.tiers, strict=True))
        ]
        static = Tier(name=TierName("static"), serves="", answer=StaticAnswer())
        return Topology(models=(Model(name=ModelName("model"), tiers=(*tiers, static)),))

    def names(self) -> tuple[tuple[str, ...], ...]:
        """Return the instance names: `tier-index`, counted from 0."""
        return tuple(
            tuple(f"{tier}-{index}" for index in range(len(specs)))
            for tier, specs in enumerate(self.tiers)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The fleet at one moment."""

    at: float
    decision: Decision
    running: tuple[tuple[int, ...], ...]
    waiting: tuple[tuple[int, ...], ...]
    kv: tuple[tuple[float, ...], ...]
    busy_slot_s: tuple[tuple[float, ...], ...]
    """Slot-seconds computed since the beginning, per instance."""
    up: tuple[tuple[bool, ...], ...]


@dataclass(slots=True)
class Trace:
    """What a run left behind."""

    spec: FleetSpec
    ticks: list[Tick] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """All of them, by time of arrival; `tier` tells who served it."""
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    """Every change of weights, with the time at which proxies obeyed it."""
    broken: int = 0
    """Streams that were running on an instance when it died."""
    evaluations: int = 0


TICK_S = 0.25


class _Fleet:
    def __init__(self, *, spec: FleetSpec, controller: Controller, seed: int) -> None:
        self.spec = spec
        self.controller = controller
        self.engines = [
            [Engine(spec=engine, lengths=spec.lengths) for engine in tier] for tier in spec.tiers
        ]
        self.names = spec.names()
        self.trace = Trace(spec=spec)
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = 0
        self.route_random = Random(f"{seed} route")
        self.requests = arrivals(
            rate=Profile(points=tuple((at, x * spec.capacity) for at, x in spec.load.points)),
            lengths=spec.lengths,
            until=spec.duration_s,
            random=Random(f"{seed} requests"),
        )
        self.deadline: float | None = None
        self.decision = controller.decide(0.0)
        self.obey(0.0, self.decision)
        self.wake(self.decision.next_deadline)

    def at(self, time: float, action: Callable[[float], None]) -> None:
        self.order += 1
        heappush(self.heap, (time, self.order, action))

    def run(self) -> Trace:
        spec = self.spec
        phases = Random(0)
        for tier, engines in enumerate(self.engines):
            for index in range(len(engines)):
                self.at(
                    phases.random() * spec.interval_s,
                    lambda now, tier=tier, index=index: self.read(now, tier, index),  # type: ignore[misc]
                )
        for crash in spec.crashes:
            self.at(crash.at, lambda now, crash=crash: self.crash(now, crash))  # type: ignore[misc]
        self.at(0.0, self.tick)
        self.next_request()
        heap = self.heap
        while heap and heap[0][0] <= spec.duration_s:
            now, _, action = heappop(heap)
            action(now)
        return self.trace

    # Clients and proxies.

    def next_request(self) -> None:
        request = next(self.requests, None)
        if request is not None:
            self.at(request.arrived_at, lambda now: self.arrive(now, request))

    def arrive(self, now: float, request: Request) -> None:
        self.trace.requests.append(request)
        self.route(now, request, bisect_right(self.tier_edges, self.route_random.random()))
        self.next_request()

    def route(self, now: float, request: Request, tier: int) -> None:
        for candidate in range(tier, len(self.engines)):
            engine = self.pick(candidate)
            if engine is not None:
                request.tier = candidate
                engine.offer(request, now)
                return
        request.tier = len(self.engines)
        request.started_at = now

    def pick(self, tier: int) -> Engine | None:
        """Draw an instance; the dead refuse and the proxy draws again among the others."""
        total, edges = self.instance_edges[tier]
        if total <= 0.0:
            return None
        engines = self.engines[tier]
        engine = engines[bisect_right(edges, self.route_random.random() * total)]
        if engine.is_up:
            return engine
        weights = [
            weight if engine.is_up else 0.0
            for engine, weight in zip(engines, self.obeyed.weights[tier], strict=True)
        ]
        if sum(weights) <= 0.0:
            return None
        return self.route_random.choices(engines, weights)[0]

    def obey(self, now: float, decision: Decision) -> None:
        """Give the proxies new weights."""
        self.obeyed = decision
        self.trace.decisions.append((now, decision))
        # The static tier takes what rounding leaves.
        self.tier_edges = list(accumulate(decision.shares))[:-1]
        self.instance_edges = [(sum(tier), list(accumulate(tier))) for tier in decision.weights]

    # Engines and agents.

    def read(self, now: float, tier: int, index: int) -> None:
        """Let an agent read its engine and send what it saw."""
        spec = self.spec
        self.at(now + spec.interval_s, lambda later: self.read(later, tier, index))
        facts = self.engines[tier][index].facts(now)
        sample = Sample(instance=InstanceId(self.names[tier][index]), observed_at=now, engine=facts)
        if not any(silence.start <= now < silence.end for silence in spec.silences):
            self.at(now + spec.lag_s, lambda later: self.receive(later, sample))

    def crash(self, now: float, crash: Crash) -> None:
        for engines, names in zip(self.engines, self.names, strict=True):
            for engine, name in zip(engines, names, strict=True):
                if name == crash.instance:
                    broken, unserved = engine.crash(now)
                    self.trace.broken += len(broken)
                    self.at(now + crash.reload_s, engine.restart)
                    for request in unserved:
                        self.route(now, request, request.tier)

    # The control loop.

    def receive(self, now: float, sample: Sample) -> None:
        self.controller.observe(sample)
        self.decide(now)

    def decide(self, now: float) -> None:
        self.trace.evaluations += 1
        decision = self.controller.decide(now)
        if replace(decision, next_deadline=self.decision.next_deadline) != self.decision:
            self.decision = decision
            self.at(now + self.spec.push_s, lambda later: self.obey(later, decision))
        self.wake(decision.next_deadline)

    def wake(self, deadline: float | None) -> None:
        """Sleep until a deadline; an earlier one replaces a later one."""
        if deadline is None or deadline == self.deadline:
            return
        self.deadline = deadline
        self.at(deadline, self.alarm)

    def alarm(self, now: float) -> None:
        if now == self.deadline:
            self.deadline = None
            self.decide(now)

    # The observer.

    def tick(self, now: float) -> None:
        self.at(now + TICK_S, self.tick)
        for tier in self.engines:
            for engine in tier:
                engine.advance(now)
        self.trace.ticks.append(
            Tick(
                at=now,
                decision=self.obeyed,
                running=tuple(tuple(len(e.running) for e in tier) for tier in self.engines),
                waiting=tuple(tuple(len(e.waiting) for e in tier) for tier in self.engines),
                kv=tuple(tuple(e.kv_ratio for e in tier) for tier in self.engines),
                busy_slot_s=tuple(tuple(e.busy_slot_s for e in tier) for tier in self.engines),
                up=tuple(tuple(e.is_up for e in tier) for tier in self.engines),
            )
        )


def run(spec: FleetSpec, controller: Controller, seed: int) -> Trace:
    """Play a fleet under a controller.

    Args:
        spec: The fleet and what happens to it.
        controller: Decides the weights. It must be new: it learns.
        seed: Equal seeds give equal traces.

    Returns:
        What happened.
    """
    return _Fleet(spec=spec, controller=controller, seed=seed).run()
