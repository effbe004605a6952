"""What the fleet is: models, their tiers, and the instances in each tier.

A *model* is what a client calls. It has an ordered chain of *tiers* (primary, fallback, ..., static);
a tier that is not static has *instances*: engine server processes, each reachable at one address.
These values come from the configuration (and from agents that register instances); they change
rarely, unlike samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

ModelName = NewType("ModelName", str)
TierName = NewType("TierName", str)
InstanceId = NewType("InstanceId", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One engine server process, perhaps on several GPUs."""

    id: InstanceId
    """Unique in the fleet; what agents, logs and commands call it."""
    host: str
    """IP address as Envoy sees it."""
    port: int
    capacity: float | None = None
    """Concurrent requests it can run (slots); None = learn it from the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLimit:
    """The most a tier may be given, whatever its signals say. None = no limit."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTokens:
    """How `max_tokens` is shortened on this tier: `max(floor, scale * asked)`."""

    scale: float = 0.5
    floor: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticAnswer:
    """What the static tier says. `body` is a JSON document; SSE is derived from it."""

    status: int = 200
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of a model's chain. Exactly one of `instances` and `answer` is meaningful."""

    name: TierName
    serves: str
    """The model name that this tier's engines answer to."""
    instances: tuple[Instance, ...] = ()
    discovers: bool = False
    """Agents may register instances of this tier."""
    limit: TierLimit = TierLimit()
    max_tokens: MaxTokens | None = None
    answer: StaticAnswer | None = None

    @property
    def is_static(self) -> bool:
        """Whether this tier answers by itself, without engines."""
        return self.answer is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a client calls, and the chain of tiers that may answer."""

    name: ModelName
    tiers: tuple[Tier, ...]
    """From most to least wanted; the last one is static."""
    domains: tuple[str, ...] = ("*",)
    prefix: str = "/v1/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Every model of the fleet and the address that proxies listen on."""

    models: tuple[Model, ...]
    listener_host: str = "0.0.0.0"
    listener_port: int = 10000

    def instances(self) -> Iterator[tuple[Model, Tier, Instance]]:
        """Yield every instance with its tier and model, in configuration order."""
        for model in self.models:
            for tier in model.tiers:
                for instance in tier.instances:
                    yield model, tier, instance
