"""What the fleet is: models, their tiers, and the instances in each tier.

A *model* is what a client calls. It has an ordered chain of *tiers* (primary, fallback, ..., static);
a tier that is not static has *instances*: engine server processes, each reachable at one address.
These values come from the configuration (and from agents that register instances); they change
rarely, unlike samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

from xds_server.core.limits import NO_LIMIT, Limit, Tenants

ModelName = NewType("ModelName", str)
TierName = NewType("TierName", str)
InstanceId = NewType("InstanceId", str)
ClassName = NewType("ClassName", str)


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
class MaxTokens:
    """How `max_tokens` is shortened on this tier: `max(floor, scale * asked)`, never more than asked."""

    scale: float = 0.5
    floor: int = 16
    when_absent: int | None = None
    """Put into requests that ask for no limit; None = they stay without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticAnswer:
    """What the static tier says. `body` is a JSON document; SSE is derived from it."""

    status: int = 200
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None
    templates: tuple[StaticTemplate, ...] = ()
    """Answers for some requests, the first that fits; this one is for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTemplate:
    """What the static tier says to requests that fit every kind of condition that is given."""

    name: str
    answer: StaticAnswer
    """Has no templates of its own."""
    keywords: tuple[str, ...] = ()
    """Words or phrases, one of which the prompt must have; none = whatever it has."""
    classes: tuple[ClassName, ...] = ()
    """Classes, one of which must be the request's; none = whatever class."""
    languages: tuple[str, ...] = ()
    """Languages as in Accept-Language, one of which must be what the client likes most; none = whatever."""


class AffinityPolicy(StrEnum):
    """How a session finds its endpoint again."""

    MAGLEV = "maglev"
    RING_HASH = "ring_hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """What names a session; exactly one of `header` and `cookie` is set."""

    policy: AffinityPolicy = AffinityPolicy.MAGLEV
    header: str | None = None
    cookie: str | None = None
    cookie_ttl_s: float | None = None
    """Proxies give a client without the cookie one that lives this long (0 = a browser session);
    None = they never set it."""
    overflow_ratio: float | None = None
    """An endpoint with this many times its share of a proxy's running requests gets no more of them, whatever
    their session; None = a session is never sent elsewhere for load."""


class Telemetry(StrEnum):
    """What besides agents tells the load of a tier's engines."""

    AGENTS = "agents"
    ORCA = "orca"
    """The engines' own load reports in response headers, which proxies pass on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of a model's chain. Exactly one of `instances` and `answer` is meaningful."""

    name: TierName
    serves: str
    """The model name that this tier's engines answer to."""
    instances: tuple[Instance, ...] = ()
    discovers: bool = False
    """Agents may register instances of this tier."""
    limit: Limit = NO_LIMIT
    """The most the tier may be given, whatever its signals say; the rest goes to the next tier."""
    max_tokens: MaxTokens | None = None
    answer: StaticAnswer | None = None
    affinity: Affinity | None = None
    health_path: str | None = None
    """What proxies ask for where `policy.health` is active; None = the policy's path."""
    telemetry: Telemetry = Telemetry.AGENTS

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
    limit: Limit = NO_LIMIT
    """Of all its requests, whatever tier answers; the rest is refused with 429."""
    names: tuple[str, ...] = ()
    """What the body's `model` says where it is this model that is asked for; none = whatever it says."""
    is_default: bool = False
    """Besides, it takes the requests that name no model of its domain and prefix, or none at all."""

    @property
    def takes_any(self) -> bool:
        """Whether the body has no say in what is this model's."""
        return self.is_default or not self.names

    @property
    def public_names(self) -> tuple[str, ...]:
        """What clients call it."""
        return self.names or (self.name,)


class WhenCritical(StrEnum):
    """What becomes of a class of requests while the first tier of its model is critical."""

    SERVE = "serve"
    """It gets its weights, as ever."""
    STATIC = "static"
    """It gets the static answer."""
    REJECT = "reject"
    """It gets a 429 with `retry-after`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """Requests that matter equally. Without `header` and `prefix`: all that are in no other class."""

    name: ClassName
    header: str | None = None
    """A request header that members carry, in lower case ..."""
    value: str | None = None
    """... with this value; None = with any."""
    prefix: str | None = None
    """Start of the path of members."""
    header_timeout_s: float | None = None
    """Time to response headers per attempt; None = `FailurePolicy.header_timeout_s`."""
    retries: int = 0
    """More attempts on a failing tier before the next one is tried; what leads down the chain to the static
    answer comes on top. All together there are at most three."""
    demand_ratio: float | None = None
    """Its share of the requests, believed until it was observed; None = an equal part of what is left."""
    quota_ratio: float | None = None
    """Its share of each tenant's limits; None = all of them."""
    when_critical: WhenCritical = WhenCritical.SERVE

    @property
    def is_rest(self) -> bool:
        """Whether it takes what is in no other class."""
        return self.header is None and self.prefix is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Every model of the fleet and the address that proxies listen on."""

    models: tuple[Model, ...]
    listener_host: str = "0.0.0.0"
    listener_port: int = 10000
    tenants: Tenants | None = None
    """None = requests are not told apart by who sends them."""
    lists_models: bool = False
    """Whether proxies answer `GET .../models` themselves."""
    classes: tuple[RequestClass, ...] = ()
    """From most to least critical; none = all requests matter equally."""

    def instances(self) -> Iterator[tuple[Model, Tier, Instance]]:
        """Yield every instance with its tier and model, in configuration order."""
        for model in self.models:
            for tier in model.tiers:
                for instance in tier.instances:
                    yield model, tier, instance
