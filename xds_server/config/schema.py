"""What may be written in the configuration file.

Only shapes and single values are judged here; `checks.py` judges what values mean together, on the
raw document, so that both kinds of problem are reported at once.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Strict, Tag

from xds_server.config.described import DescribedSchema
from xds_server.config.istio_schema import IstioSection
from xds_server.config.mirror import SECONDS_MAX, Number, Path, Ratio, Section, Whole, mirror
from xds_server.config.values import (
    COUNT_MAX,
    LIST,
    MAPPING,
    RATE_MAX,
    RATE_MIN,
    TOKENS_MAX,
    Address,
    AnswerStatus,
    Domain,
    Duration,
    HeaderName,
    Ip,
    Keyword,
    Language,
    Listen,
    ListenerPort,
    Name,
    Prefix,
    PublicName,
    Shown,
    Text,
)
from xds_server.core.model import WhenCritical
from xds_server.core.policy import Policy


def _shape_of_instances(value: Any) -> str:
    return MAPPING if isinstance(value, dict | Discover) else LIST


TelemetryKind = Literal["agents", "orca"]

PolicySection = mirror(Policy)


class Listener(Section):
    """Where proxies accept the requests of clients."""

    address: Ip = "0.0.0.0"
    """IP address to listen on."""
    port: ListenerPort = 10000
    """0 lets every proxy take a free port: for several proxies on one machine."""
    lists_models: Annotated[bool, Strict()] = True
    """Proxies answer GET /v1/models and /v1/models/{name} themselves, with the names that clients may ask for.
    Without it engines answer, each for itself."""


class Match(Section):
    """Which requests belong to a model."""

    domains: Annotated[list[Domain], Field(min_length=1)] = Field(default_factory=lambda: ["*"])
    """Host names, exact or with a `*` at one end."""
    prefix: Prefix = "/v1/"
    """Start of the path."""
    models: Annotated[list[PublicName], Field(min_length=1)] | None = None
    """What the body's `model` must be: the model's public name and its aliases. Several models can then share
    domain and prefix; proxies parse every body (up to 8 MiB) to tell. Left out = whatever the body says."""
    default: Annotated[bool, Strict()] = False
    """It also takes the requests that ask for no known model. Without a default they get a 404 in OpenAI's shape."""


class InstanceSection(Section):
    """One engine server process."""

    name: Name
    """Unique in the fleet; what agents, logs and commands call it."""
    address: Address
    """ip:port as Envoy sees it."""
    capacity: Annotated[Number, Field(gt=0)] | None = None
    """Concurrent requests it can run; left out = learned from the engine."""


class Discover(Section):
    """Instances are registered by the agents that own them."""

    discover: Literal["agents"]


class RateLimit(Section):
    """The most that the whole fleet of proxies admits; left out = no limit."""

    requests_per_second: Annotated[Number, Field(ge=RATE_MIN, le=RATE_MAX)] | None = None
    tokens_per_second: Annotated[Number, Field(ge=RATE_MIN, le=RATE_MAX)] | None = None
    """Tokens of the prompt, estimated from its size, and those that may be generated."""


class Limit(RateLimit):
    """The most a tier may be given, whatever its signals say; the rest goes to the next tier."""

    concurrency: Annotated[Whole, Field(ge=1, le=COUNT_MAX)] | None = None
    """Requests in progress at each proxy."""
    queue: Annotated[Whole, Field(ge=0, le=COUNT_MAX)] | None = None
    """Requests that may wait at each proxy for one of these to end, or for a connection to be made; left out or 0 = none. A number
    below `concurrency` counts as that: proxies cannot tell the two kinds of waiting apart."""


class MaxTokensSection(Section):
    """How `max_tokens` and `max_completion_tokens` are shortened: max(floor, scale x asked), never more than asked."""

    scale: Annotated[Ratio, Field(gt=0)] = 0.5
    floor: Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] = 16
    when_absent: Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] | None = None
    """The `max_tokens` of completions that ask for none; left out = they stay without."""


class StaticText(Section):
    """One thing that the static tier says."""

    status: AnswerStatus = 200
    json_: Annotated[dict[str, Any], Field(alias="json")]
    """The JSON body, at most 64 KiB; the answers of streaming and of text requests are derived from it."""
    retry_after_s: Annotated[Whole, Field(ge=0, le=SECONDS_MAX)] | None = None
    """The header `retry-after`; left out = none."""


class When(Section):
    """Which requests a template is for. Every kind that is given must fit, by any one of its entries."""

    keywords: list[Keyword] = Field(default_factory=list)
    """Words or phrases in what the user wrote (the newest 32 KiB), whatever their case; with a `*` at the end also
    as the start of a longer word. All templates together have at most 64."""
    classes: list[Name] = Field(default_factory=list)
    """Names of `classes`."""
    languages: list[Language] = Field(default_factory=list)
    """What the client likes most by its `Accept-Language`; `de` includes `de-AT`."""


class AnswerTemplate(StaticText):
    """What the static tier says to some requests."""

    name: Name
    """What the header `x-static-template` and metrics call it."""
    when: When


class Answer(StaticText):
    """What the static tier says."""

    templates: list[AnswerTemplate] = Field(default_factory=list)
    """Other answers for some requests: the first that fits. This one is for the rest, and called `default`."""


class AffinitySection(Section):
    """Requests of one session go to the same instance of the tier, where their prefix is cached."""

    policy: Literal["maglev", "ring_hash"] = "maglev"
    """maglev moves the fewest sessions when a weight changes."""
    header: HeaderName | None = None
    """Request header that names the session; a request without it goes by weight."""
    cookie: Text | None = None
    """The same by a cookie."""
    cookie_ttl_s: Annotated[Number, Field(ge=0, le=SECONDS_MAX)] | None = None
    """Proxies give clients without the cookie one that lives this long; 0 = until the client ends."""
    overflow_ratio: Annotated[Number, Field(ge=1, le=100)] | None = None
    """An instance with this many times its share of a proxy's running requests gets no more: some sessions lose
    their cache so that others need not wait for it. Left out = never."""


class TierSection(Section):
    """One level of a model's chain."""

    name: Name
    serves: Shown | None = None
    """What this tier's engines call their model: the body's `model` is rewritten to it, and `x-served-model` says it.
    Left out = the model's own name; bodies that cannot name another are then passed on as they are."""
    instances: (
        Annotated[
            Annotated[list[InstanceSection], Tag(LIST)] | Annotated[Discover, Tag(MAPPING)],
            Discriminator(_shape_of_instances),
        ]
        | None
    ) = None
    """A list, or `{discover: agents}`."""
    limit: Limit = Field(default_factory=Limit)
    max_tokens: MaxTokensSection | None = None
    """Shorter answers from this tier; left out = as long as asked."""
    answer: Answer | None = None
    affinity: AffinitySection | None = None
    """Left out = every request goes by weight."""
    health_path: Path | None = None
    """What proxies ask this tier's engines for; left out = `policy.health.path`."""
    telemetry: TelemetryKind | None = None
    """`orca`: engines say their load in response headers (vLLM, Triton), besides or in place of agents;
    left out = the model's."""


class ModelSection(Section):
    """What a client calls, and the tiers that may answer, most wanted first."""

    name: Name
    match: Match = Field(default_factory=Match)
    limit: RateLimit = Field(default_factory=RateLimit)
    """Of all its requests, whatever tier answers; the rest is refused with 429."""
    tiers: Annotated[list[TierSection], Field(min_length=1)]
    telemetry: TelemetryKind = "agents"
    """What tells the load of its tiers' engines; see there."""


class ClassMatch(Section):
    """Which requests belong to a class; where both a header and a prefix are given, both must fit."""

    header: HeaderName | None = None
    """A request header that is there. Clients set it: let a gateway in front do so where they are not trusted."""
    value: Shown | None = None
    """What it must say; left out = anything."""
    prefix: Prefix | None = None
    """Start of the path."""


class ClassSection(Section):
    """Requests that matter equally. Classes are listed from the most to the least critical."""

    name: Name
    match: ClassMatch | None = None
    """The first class that fits is a request's; exactly one class has no match and takes the rest."""
    header_timeout_s: Duration | None = None
    """Time to response headers per attempt; left out = 2 for the first class, 15 for the last, 5 between."""
    retries: Annotated[Whole, Field(ge=0, le=3)] | None = None
    """More attempts on a failing tier before the next one is tried; left out = 0 for the first class, 3 for
    the last, 1 between. What leads down the chain to the static answer comes on top; all together
    there are at most 3."""
    demand_ratio: Annotated[Ratio, Field(gt=0)] | None = None
    """Its share of the requests, believed until it was observed; left out = an equal part of what is left."""
    quota_ratio: Annotated[Ratio, Field(gt=0)] | None = None
    """Its share of each tenant's limits; left out = all of them."""
    when_critical: WhenCritical = WhenCritical.SERVE
    """What its requests get while the first tier of their model is critical: its weights as ever, the static
    answer, or a 429."""


class TenantSection(Section):
    """A customer with a limit of its own."""

    name: Name
    """What statistics and logs call it."""
    key: Text
    """The value of `tenants.header` that is its own; with `tenants.hashed` the SHA-256 of that, in hex."""
    limit: RateLimit


class TenantsSection(Section):
    """How tenants are told apart, and what each may use of all models together."""

    header: HeaderName
    """The request header that names a tenant. Clients set it: use one that a gateway in front has checked, or
    the key of the API (`authorization`), which only its owner knows."""
    hashed: Annotated[bool, Strict()] = False
    """`key`s are SHA-256 hashes, in hex: keys of an API are secrets and not written into files. Of an
    `authorization` header what follows `Bearer ` is hashed."""
    listed: list[TenantSection] = Field(default_factory=list)
    """Tenants with limits of their own."""
    others: RateLimit = Field(default_factory=RateLimit)
    """For each value of the header that is not listed, by itself."""
    missing: RateLimit = Field(default_factory=RateLimit)
    """For all requests without the header, together."""


class ServerSection(Section):
    """Settings of the process; flags and environment variables win over these."""

    xds_listen: Listen | None = None
    admin_listen: Listen | None = None
    state_dir: Text | None = None
    agents_token_file: Text | None = None
    admin_tokens_file: Text | None = None
    """File of who may look and order at the admin address (docs/security.md); left out = no tokens."""
    admin_anonymous: Literal["none", "viewer", "operator"] | None = None
    """What is permitted without a token; left out = `none` where there is a file of tokens, else `operator` on
    loopback and `viewer` elsewhere."""
    xds_cert_file: Text | None = None
    """TLS for proxies and agents: certificate chain (PEM), read again at every handshake."""
    xds_key_file: Text | None = None
    """Its private key (PEM)."""
    xds_client_ca_file: Text | None = None
    """Only who has a certificate of these authorities (PEM) may connect; left out = everybody may."""
    admin_cert_file: Text | None = None
    """TLS for the admin address: certificate chain (PEM)."""
    admin_key_file: Text | None = None
    """Its private key (PEM)."""
    log_format: Literal["auto", "console", "json"] | None = None
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    grace_s: Annotated[Number, Field(ge=0)] | None = None
    push_gap_ms: Annotated[Number, Field(ge=0)] | None = None
    store_file: Text | None = None
    """File of the history of events; left out = `events.db` in the state directory."""
    store_keep_days: Annotated[Number, Field(gt=0, le=36500)] | None = None
    """Events that are older are deleted; 30 if left out."""
    store_max_bytes: Annotated[Number, Field(ge=1048576, le=2**50)] | None = None
    """When the history is larger its oldest events are deleted; 256 MiB if left out."""
    traces_url: Annotated[str, Field(pattern=r"^https?://[^/\s]+/\S*$")] | None = None
    """Where traces of pushes go: an OTLP/HTTP receiver; left out = none. Needs `gpu-xds[otel]`."""


class Document(Section):
    """The whole file."""

    listener: Listener = Field(default_factory=Listener)
    models: Annotated[list[ModelSection], Field(min_length=1)]
    classes: list[ClassSection] = Field(default_factory=list)
    """From the most to the least critical; left out = all requests matter equally."""
    tenants: TenantsSection | None = None
    """Left out = requests are not told apart by who sends them."""
    istio: IstioSection | None = None
    """Left out = no Istio mesh is told anything."""
    policy: PolicySection = Field(default_factory=PolicySection)  # type: ignore[valid-type]
    server: ServerSection = Field(default_factory=ServerSection)


@functools.cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors."""
    schema = Document.model_json_schema(by_alias=True, schema_generator=DescribedSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
