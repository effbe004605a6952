"""Topologies and plans in a few words, for tests of everything behind the brain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from xds_server.core.plan import (
    EndpointHealth,
    FaultState,
    Freshness,
    InstancePlan,
    Level,
    ModelPlan,
    Plan,
    Reason,
    TierPlan,
)

BUSY = "The service is busy, please try again shortly."
ANSWER = StaticAnswer(body={"choices": [{"message": {"role": "assistant", "content": BUSY}}]})


def a_tier(name: str, serves: str, ports: Sequence[int], *, prefix: str = "") -> Tier:
    """Make a tier with one instance per port."""
    return Tier(
        name=TierName(name),
        serves=serves,
        instances=tuple(
            Instance(id=InstanceId(f"{prefix}{name}-{index}"), host="127.0.0.1", port=port)
            for index, port in enumerate(ports)
        ),
    )


def one_tier(*names: str, discovers: bool = False) -> Topology:
    """Make a topology of one model with these instances in its first tier; in a second one agents may register."""
    listed = tuple(
        Instance(id=InstanceId(name), host="10.0.0.1", port=8000 + index)
        for index, name in enumerate(names)
    )
    tiers = [
        Tier(name=TierName("primary"), serves="big", instances=listed),
        *([Tier(name=TierName("more"), serves="big", discovers=True)] if discovers else []),
        Tier(name=TierName("static"), serves="big", answer=StaticAnswer()),
    ]
    return Topology(models=(Model(name=ModelName("chat"), tiers=tuple(tiers)),))


def a_static_tier(answer: StaticAnswer = ANSWER) -> Tier:
    """Make the last tier of a chain."""
    return Tier(name=TierName("static"), serves="", answer=answer)


def a_model(
    name: str = "chat",
    *,
    tiers: Sequence[Tier] | None = None,
    domains: Sequence[str] = ("*",),
    prefix: str = "/v1/",
) -> Model:
    """Make a model; by default 70B on two instances, 8B on one, and a static answer."""
    if tiers is None:
        tiers = (
            a_tier("primary", "llama-3-70b", [8001, 8002], prefix=f"{name}-"),
            a_tier("fallback", "llama-3-8b", [8003], prefix=f"{name}-"),
            a_static_tier(),
        )
    return Model(name=ModelName(name), tiers=tuple(tiers), domains=tuple(domains), prefix=prefix)


def a_topology(*models: Model) -> Topology:
    """Make a topology that listens on a free loopback port."""
    return Topology(models=models or (a_model(),), listener_host="127.0.0.1", listener_port=0)


def a_reason(rule: str = "nominal") -> Reason:
    """Make a reason whose text nobody reads."""
    return Reason(rule=rule, text=rule)


def a_tier_plan(
    tier: Tier,
    *,
    weight: int,
    rule: str = "nominal",
    weights: Mapping[str, int] | None = None,
    health: Mapping[str, EndpointHealth] | None = None,
    otherwise: int = 1000,
) -> TierPlan:
    """Plan one tier; instances not named are healthy and have the weight `otherwise`."""
    instances = tuple(
        InstancePlan(
            id=instance.id,
            state=FaultState.HEALTHY,
            freshness=Freshness.FRESH,
            ceiling=1.0,
            weight=(weights or {}).get(instance.id, otherwise),
            health=(health or {}).get(instance.id, EndpointHealth.HEALTHY),
            pressure=None,
            basis=a_reason(),
        )
        for instance in tier.instances
    )
    return TierPlan(
        name=tier.name,
        level=Level.HEALTHY,
        pressure=None,
        share=max(0, weight) / 1000,
        weight=weight,
        spill=0.0,
        demand=None,
        capacity=None,
        reason=a_reason(rule),
        instances=instances,
    )


def a_model_plan(
    model: Model,
    split: Sequence[int] | None = None,
    *,
    rules: Sequence[str] = (),
    weights: Mapping[str, int] | None = None,
    health: Mapping[str, EndpointHealth] | None = None,
    otherwise: int = 1000,
) -> ModelPlan:
    """Plan one model; by default everything goes to its first tier."""
    numbers = split or [1000] + [0] * (len(model.tiers) - 1)
    return ModelPlan(
        name=model.name,
        tiers=tuple(
            a_tier_plan(
                tier,
                weight=number,
                rule=rules[index] if index < len(rules) else "nominal",
                weights=weights,
                health=health,
                otherwise=otherwise,
            )
            for index, (tier, number) in enumerate(zip(model.tiers, numbers, strict=True))
        ),
    )


def a_plan(topology: Topology, split: Sequence[int] | None = None, **numbers: object) -> Plan:
    """Plan every model the same way; see `a_model_plan` for the numbers."""
    return Plan(
        models=tuple(a_model_plan(model, split, **numbers) for model in topology.models),  # type: ignore[arg-type]
        next_deadline=None,
    )
