"""The brain's state between two evaluations, and the topology that it is about.

No I/O and no clock: whoever holds a `Fleet` says what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xds_server.core import classes, persist
from xds_server.core.classes import Division
from xds_server.core.evaluate import evaluate, initial_state, observe, retarget
from xds_server.core.inputs import Input
from xds_server.core.model import ClassName, InstanceId, ModelName, Topology
from xds_server.core.plan import EndpointHealth, InstancePlan, Plan
from xds_server.core.policy import Policy
from xds_server.core.state import FleetState


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Inputs were taken in and a plan was made."""

    now: float
    inputs: Sequence[Input]
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Saw:
    """Proxies saw requests of the classes of a model."""

    now: float
    model: ModelName
    counts: Mapping[ClassName, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """The fleet went on with another topology or policy."""

    now: float
    topology: Topology
    policy: Policy


Step = Evaluated | Saw | Reconfigured
"""Everything that may change what a fleet remembers."""
Memory = tuple[FleetState, Division, Plan | None]
"""All that a fleet remembers. Immutable."""


class Fleet:
    """Topology, policy and the state that `evaluate` carries along."""

    def __init__(self, topology: Topology, policy: Policy, now: float) -> None:
        self.topology = topology
        self.policy = policy
        self.plan: Plan | None = None
        self.watchers: list[Callable[[Step], None]] = []
        """Told every step, once it is done; must be quick and never raise."""
        self._state = initial_state(topology, policy, now)
        self._division = classes.initial(topology.classes)

    def evaluate(self, inputs: Sequence[Input], now: float) -> Plan:
        """Take inputs in and return the plan that follows; it is also kept as `plan`."""
        observed = observe(self._state, inputs, self.policy, now)
        self._state, plan = evaluate(observed, self.policy, now)
        self._division, self.plan = classes.divide(self._division, plan)
        if self.watchers:
            self._tell(Evaluated(now=now, inputs=inputs, plan=self.plan))
        return self.plan

    def saw_requests(self, model: ModelName, counts: Mapping[ClassName, float], now: float) -> bool:
        """Take in how many requests of each class proxies saw since the last call.

        Returns:
            Whether the classes' shares moved so far that an evaluation would move their weights.
        """
        self._division = classes.observe(self._division, model, counts, now)
        if self.watchers:
            self._tell(Saw(now=now, model=model, counts=counts))
        return classes.has_moved(self._division, model)

    def drained_by(self, instance: InstanceId) -> str | None:
        """Return which operator drains an instance, and why; None when none does, or there is none such."""
        place = self._state.index.get(instance)
        if place is None:
            return None
        model, tier, position = place
        return self._state.models[model].tiers[tier].instances[position].track.operator

    def vram_tripped(self) -> frozenset[InstanceId]:
        """Return the instances whose GPU memory takes capacity away (`core/vram.py`)."""
        return frozenset(
            each.instance.id
            for model in self._state.models
            for tier in model.tiers
            for each in tier.instances
            if each.vram.latch.on
        )

    def reconfigure(self, topology: Topology, policy: Policy, now: float) -> None:
        """Go on with another topology or policy; instances that stay keep their state."""
        self._state = retarget(self._state, topology, policy, now)
        self._division = classes.retarget(self._division, topology.classes)
        self.topology = topology
        self.policy = policy
        if self.watchers:
            self._tell(Reconfigured(now=now, topology=topology, policy=policy))

    def remember(self) -> Memory:
        """Return all that it remembers, for `recall`."""
        return self._state, self._division, self.plan

    def recall(self, memory: Memory) -> None:
        """Go on from there, exactly; topology and policy must be those of the fleet that remembered it."""
        self._state, self._division, self.plan = memory

    def _tell(self, step: Step) -> None:
        for watch in self.watchers:
            watch(step)

    def dump(self, now: float) -> dict[str, Any] | None:
        """Return what a successor needs to continue, for `StateFile`; None before a plan."""
        if self.plan is None:
            return None
        document = persist.dump_lazily(self._state, self.plan, now)
        if self.topology.classes:
            document["classes"] = classes.dump(self._division)
        return document

    def restore(self, data: Mapping[str, Any], now: float, *, away_s: float = 0.0) -> None:
        """Continue where `dump` left off, `away_s` ago.

        Raises:
            ValueError: The data are not from `dump`.
        """
        state = persist.restore(self.topology, self.policy, data, now, away_s=away_s)
        if "classes" in data:
            self._division = classes.restore(self.topology.classes, data["classes"], now)
        self._state = state


def instance_plans(plan: Plan) -> dict[InstanceId, InstancePlan]:
    """Index a plan by instance."""
    return {
        instance.id: instance
        for model in plan.models
        for tier in model.tiers
        for instance in tier.instances
    }


def takes_no_traffic(plan: Plan) -> frozenset[InstanceId]:
    """Return the instances that proxies are told to send no new requests to."""
    return frozenset(
        name
        for name, each in instance_plans(plan).items()
        if each.health is not EndpointHealth.HEALTHY
    )
