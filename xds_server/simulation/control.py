"""What decides the weights of a simulated fleet: the real brain, or the baseline to beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from xds_server.core import evaluate as core
from xds_server.core.model import Topology
from xds_server.core.plan import EndpointHealth, Event, ModelPlan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The weights that proxies are given."""

    shares: tuple[float, ...]
    """Share of the requests per tier, in chain order; adds up to 1."""
    spill: float
    """What the first tier passes on, 0-1."""
    weights: tuple[tuple[float, ...], ...]
    """Weight per instance per tier; 0 = takes nothing."""
    ceilings: tuple[tuple[float, ...], ...]
    """Ceiling per instance per tier, 0-1."""
    levels: tuple[str, ...]
    """Level per tier."""
    next_deadline: float | None
    """When to decide again though no sample came, seconds."""


class Controller(Protocol):
    """Anything that turns samples into weights."""

    def observe(self, sample: Sample) -> None:
        """Take note of a sample."""
        ...

    def decide(self, now: float) -> Decision:
        """Return the weights at `now`."""
        ...


class Brain:
    """The control plane's own `evaluate`, fed with samples as they arrive.

    Args:
        topology: One model whose last tier is static.
        policy: The thresholds.
    """

    def __init__(self, *, topology: Topology, policy: Policy) -> None:
        self._policy = policy
        self._state = core.initial_state(topology, policy, 0.0)
        self._inputs: list[Sample] = []
        self._plan: ModelPlan | None = None
        self._decision: Decision | None = None
        self.events: list[tuple[float, Event]] = []
        """What the brain reported, with the time."""

    def observe(self, sample: Sample) -> None:
        """Keep the sample for the next decision."""
        self._inputs.append(sample)

    def decide(self, now: float) -> Decision:
        """Evaluate what arrived and return the weights."""
        observed = core.observe(self._state, self._inputs, self._policy, now)
        self._state, plan = core.evaluate(observed, self._policy, now)
        self._inputs = []
        self.events += [(now, event) for event in plan.events]
        model = plan.models[0]
        if model is not self._plan or self._decision is None:
            self._plan = model
            self._decision = _decision(model)
        return replace(self._decision, next_deadline=plan.next_deadline)


def _decision(model: ModelPlan) -> Decision:
    engines = model.tiers[:-1]
    total = sum(tier.weight for tier in model.tiers)
    return Decision(
        shares=tuple(tier.weight / total for tier in model.tiers),
        spill=1.0 - engines[0].weight / total,
        weights=tuple(
            tuple(
                float(instance.weight) if instance.health is EndpointHealth.HEALTHY else 0.0
                for instance in tier.instances
            )
            for tier in engines
        ),
        ceilings=tuple(tuple(instance.ceiling for instance in tier.instances) for tier in engines),
        levels=tuple(tier.level.value for tier in engines),
        next_deadline=None,
    )


class StaticWeights:
    """The baseline: every instance weighs its capacity, the first tier gets everything.

    Args:
        slots: Slots per instance per tier.
    """

    def __init__(self, *, slots: tuple[tuple[float, ...], ...]) -> None:
        self._decision = Decision(
            shares=(1.0,) + (0.0,) * (len(slots) - 1),
            spill=0.0,
            weights=slots,
            ceilings=tuple((1.0,) * len(tier) for tier in slots),
            levels=("healthy",) * len(slots),
            next_deadline=None,
        )

    def observe(self, sample: Sample) -> None:
        """Ignore the sample."""

    def decide(self, now: float) -> Decision:
        """Return the same weights as always."""
        del now
        return self._decision
