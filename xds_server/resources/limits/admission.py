"""ECDS: the limiters, as configurations that proxies fetch apart from their listeners.

A limiter whose configuration changes starts with full buckets. Delivered by ECDS it changes only when its own
numbers do: not with weights (RDS), where a limiter on a route would start anew with every push; and unlike a change of
the listener it reaches open connections at once (all seen on 1.40). What is refused gets OpenAI's error body from
the listener's mapping of local replies, and `retry-after`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from xds_server.core.limits import Tenants
from xds_server.core.model import Model, Tier, Topology
from xds_server.core.policy import AdmissionPolicy
from xds_server.resources import headers
from xds_server.resources.bodies.token_cost import cost_command
from xds_server.resources.clusters import ads
from xds_server.resources.limits.limit_rules import (
    COUNTED,
    NAMELESS,
    TENANT,
    TIER,
    UNIT,
    YES,
    Bucket,
    Rule,
    Unit,
    listener_rules,
    model_rules,
    tenant_rules,
    tier_rules,
)
from xds_server.resources.names import METADATA
from xds_server.resources.proto import (
    LocalRateLimit,
    TokenBucket,
    TypedExtensionConfig,
    duration,
    serialize,
    typed,
)
from xds_server.resources.snapshot import EXTENSION_CONFIG, Resource, TypeSnapshot

LIMITS = "limits"
"""First part of the names of all limiters."""
LIMITED = "local_rate_limited"
"""Envoy's `response_code_details` of what a limiter refuses."""
TOKENS_HEADER = "x-estimated-tokens"
"""Carries the cost of a request to the tiers' limiters. A gate takes it off; engines of a tier without a limit get
it, and may ignore it."""
BUCKETS_MAX = 100_000
"""Tenants that are not listed and have a bucket at a proxy at the same time; of more, the one that was quiet the
longest starts anew. Envoy's default of 20 would let 21 tenants have no limit."""

SHARES_MAX = 1024
"""Different shares remembered; beyond them everything is made anew."""

_TYPE_URL = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_ENABLE_RETRY_AFTER = b"\x98\x01\x01"
"""Field 19, `enable_retry_after_header`, which is newer than both libraries."""
_UNLIMITED = 4_000_000_000


def limiter_name(model: Model, tier: Tier) -> str:
    """Name the limiter of a tier."""
    return f"{LIMITS}/{model.name}/{tier.name}"


def listener_limiters(topology: Topology) -> list[str]:
    """Name the limiters of the listener for clients, in order."""
    return [_name(rules) for rules in listener_rules(topology)]


def _name(rules: Sequence[Rule]) -> str:
    return f"{LIMITS}/{'tenants' if COUNTED in rules[0].keys else 'models'}"


def limits_clients(topology: Topology) -> bool:
    """Whether the listener for clients has a limiter."""
    return bool(listener_rules(topology))


def counts_tokens(topology: Topology, model: Model | None = None) -> bool:
    """Whether the cost of a model's requests has to be known; None = of any requests."""
    models = topology.models if model is None else (model,)
    rules = tenant_rules(topology)
    for each in models:
        rules += [*model_rules(each), *(rule for tier in each.tiers for rule in tier_rules(tier))]
    return any(rule.unit is Unit.TOKENS for rule in rules)


def limiter_filter(name: str) -> Any:
    """Author the place in a filter chain that a limiter is fetched for."""
    source = typed.core.ExtensionConfigSource(config_source=ads(), type_urls=[_TYPE_URL])
    return typed.hcm.HttpFilter(name=name, config_discovery=source)


class LimitTable:
    """All limiters of a topology, for proxies with any share of the limits.

    Buckets are written in upb: there may be thousands of tenants.
    """

    def __init__(self, topology: Topology, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._made: dict[float, TypeSnapshot] = {}
        self._limiters: list[_Limiter] = []
        for rules in listener_rules(topology):
            made = _Limiter(_name(rules), rules, cost_command(), topology.tenants)
            self._limiters.append(made)
        for model in topology.models:
            for tier in model.tiers:
                if rules := tier_rules(tier):
                    name = limiter_name(model, tier)
                    self._limiters.append(_Limiter(name, rules, f"%REQ({TOKENS_HEADER})%"))

    def __bool__(self) -> bool:
        """Whether there is any limiter."""
        return bool(self._limiters)

    def resources(self, share: float) -> TypeSnapshot:
        """Return the limiters for a proxy that may let through this share, above 0, of every limit."""
        found = self._made.get(share)
        if found is None:
            if len(self._made) >= SHARES_MAX:
                self._made.clear()
            made = [each.resource(share, self._policy) for each in self._limiters]
            found = TypeSnapshot(EXTENSION_CONFIG, {each.name: each for each in made})
            self._made[share] = found
        return found


class _Limiter:
    """One limiter: authored once, its buckets set per share."""

    def __init__(
        self, name: str, rules: Sequence[Rule], cost: str, tenants: Tenants | None = None
    ) -> None:
        self.name = name
        self._rules = rules
        authored = _author(name, rules, cost=cost, tenants=tenants)
        self._config = LocalRateLimit.FromString(bytes(authored) + _ENABLE_RETRY_AFTER)
        for rule in rules:
            descriptor = self._config.descriptors.add()
            for key, value in (*rule.entries, (UNIT, rule.unit.value)):
                descriptor.entries.add(key=key, value=value)

    def resource(self, share: float, policy: AdmissionPolicy) -> Resource:
        """Return the limiter of a proxy with this share; many rules are about as many tenants with equal limits."""
        buckets: dict[tuple[Unit, float], TokenBucket] = {}
        for rule, descriptor in zip(self._rules, self._config.descriptors, strict=True):
            key = (rule.unit, rule.per_second)
            if key not in buckets:
                buckets[key] = _token_bucket(Bucket.of(rule, share, policy))
            descriptor.token_bucket.CopyFrom(buckets[key])
        extension = TypedExtensionConfig(name=self.name)
        extension.typed_config.type_url = _TYPE_URL
        extension.typed_config.value = serialize(self._config)
        return Resource.of(self.name, serialize(extension))


def _token_bucket(bucket: Bucket) -> TokenBucket:
    message = TokenBucket(max_tokens=bucket.max_tokens)
    message.tokens_per_fill.value = bucket.tokens_per_fill
    message.fill_interval.FromNanoseconds(round(bucket.fill_s * 1e9))
    return message


def _author(name: str, rules: Iterable[Rule], *, cost: str, tenants: Tenants | None) -> Any:
    whole = typed.core.RuntimeFractionalPercent(
        default_value=typed.type.FractionalPercent(numerator=100)
    )
    kinds = dict.fromkeys((rule.keys, rule.unit) for rule in rules)
    return typed.local_ratelimit.LocalRateLimit(
        stat_prefix=name.replace("/", "."),
        filter_enabled=whole,
        filter_enforced=whole,
        # What no descriptor fits is not limited.
        token_bucket=typed.type.TokenBucket(
            max_tokens=_UNLIMITED, tokens_per_fill=_UNLIMITED, fill_interval=duration(1)
        ),
        always_consume_default_token_bucket=False,
        max_dynamic_descriptors=BUCKETS_MAX,
        response_headers_to_add=[headers.add(headers.DEGRADE_REASON, headers.LIMITED)],
        rate_limits=[_counted(keys, unit, cost, tenants) for keys, unit in kinds],
    )


def _counted(keys: Sequence[str], unit: Unit, cost: str, tenants: Tenants | None) -> Any:
    """Author how a request finds its buckets of one kind, and how much it takes from them."""
    r = typed.route
    actions = [_action(key, tenants) for key in keys]
    counted = r.RateLimit(actions=[*actions, _constant(UNIT, unit.value)])
    if unit is Unit.TOKENS:
        counted.hits_addend = r.RateLimitHitsAddend(format=cost)
    return counted


def _action(key: str, tenants: Tenants | None) -> Any:
    r = typed.route
    if key == TIER:
        return _constant(TIER, YES)
    source = r.RateLimitActionMetaDataSource
    if tenants is None or key not in (TENANT, NAMELESS):
        return _metadata(key, source.ROUTE_ENTRY)
    if key == NAMELESS:
        absent = r.HeaderMatcher(name=tenants.header, present_match=True, invert_match=True)
        match = r.RateLimitActionHeaderValueMatch(
            descriptor_key=NAMELESS, descriptor_value=YES, headers=[absent]
        )
        return r.RateLimitAction(header_value_match=match)
    if tenants.hashed:  # `tenants.tenant_filters` has put it there.
        return _metadata(TENANT, source.DYNAMIC)
    named = r.RateLimitActionRequestHeaders(header_name=tenants.header, descriptor_key=TENANT)
    return r.RateLimitAction(request_headers=named)


def _metadata(key: str, source: Any) -> Any:
    r = typed.route
    segment = typed.metadata.MetadataKeyPathSegment(key=key)
    said = r.RateLimitActionMetaData(
        descriptor_key=key,
        metadata_key=typed.metadata.MetadataKey(key=METADATA, path=[segment]),
        source=source,
    )
    return r.RateLimitAction(metadata=said)


def _constant(key: str, value: str) -> Any:
    r = typed.route
    constant = r.RateLimitActionGenericKey(descriptor_key=key, descriptor_value=value)
    return r.RateLimitAction(generic_key=constant)
