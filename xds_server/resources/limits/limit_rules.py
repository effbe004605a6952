"""The token buckets that a configuration asks for, as plain values.

A rule is one bucket: what a request must be for it to count there, and how much the whole fleet of proxies may
let through. `resources.limits.admission` turns the rules into Envoy's limiters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from xds_server.core.limits import Limit, Tenants
from xds_server.core.model import Model, Tier, Topology
from xds_server.core.policy import AdmissionPolicy

MODEL, CLASS, COUNTED = "model", "class", "counted"
"""Keys of the metadata on routes, and of descriptors: which model and class a request is for, and that it is one
whose cost can be told."""
TENANT, NAMELESS, TIER = "tenant", "nameless", "tier"
UNIT = "unit"
ANY = ""
"""In a descriptor: every value, each with a bucket of its own."""
YES = "yes"
LARGEST = 2**32 - 1
"""What Envoy's buckets can hold."""
UNLIMITED = 1e9
"""The most that a configuration can set, and more than any fleet sees."""


class Unit(StrEnum):
    """What a bucket counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Rule:
    """One bucket."""

    entries: tuple[tuple[str, str], ...]
    """Descriptor keys and values that a request must have."""
    unit: Unit
    per_second: float
    """Of the whole fleet."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys alone: rules with equal keys are found by the same actions."""
        return tuple(key for key, _ in self.entries)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A rule at one proxy, as Envoy wants it: `tokens_per_fill` every `fill_s`."""

    max_tokens: int
    tokens_per_fill: int
    fill_s: float

    @classmethod
    def of(cls, rule: Rule, share: float, policy: AdmissionPolicy) -> Bucket:
        """Return the bucket of a proxy that may let through this share of the limit.

        Envoy fills whole tokens, so a fraction goes into the interval. The size is what the rate fills in
        `burst_s`, but never too small for one request: a bucket that is smaller refuses it for ever.
        """
        rate = rule.per_second * share
        least = policy.largest_request_tokens if rule.unit is Unit.TOKENS else 1
        per_fill = max(1, math.ceil(rate))
        size = max(least, math.ceil(rate * policy.burst_s))
        return cls(min(size, LARGEST), per_fill, per_fill / rate)


def listener_rules(topology: Topology) -> list[list[Rule]]:
    """Return the rules for what clients send, by limiter, in the order in which these are asked.

    What a tenant is refused has to reach no bucket that others use. A limiter takes from its buckets in the order of
    their rates, whatever their units, and gives nothing back; so tenants have one of their own, before the models'.
    """
    of_models = [rule for model in topology.models for rule in model_rules(model)]
    return [rules for rules in (tenant_rules(topology), of_models) if rules]


def model_rules(model: Model) -> list[Rule]:
    """Return the rules for all requests of one model."""
    return list(_rules(model.limit, ((MODEL, model.name),)))


def tier_rules(tier: Tier) -> list[Rule]:
    """Return the rules for what reaches one tier, whatever way it came."""
    return list(_rules(tier.limit, ((TIER, YES),)))


def tenant_rules(topology: Topology) -> list[Rule]:
    """Return the rules for those who send the requests, of all models together."""
    return [] if topology.tenants is None else list(_tenant_rules(topology.tenants, topology))


def _tenant_rules(tenants: Tenants, topology: Topology) -> Iterator[Rule]:
    quotas = [each for each in topology.classes if each.quota_ratio is not None]
    # What a listed tenant has no limit for is unlimited: without a bucket of its own the others' would be found.
    everyone = [
        ((TENANT, each.key), _filled(each.limit, like=tenants.others)) for each in tenants.listed
    ]
    everyone += [((TENANT, ANY), tenants.others), ((NAMELESS, YES), tenants.missing)]
    for one, limit in everyone:
        who = ((COUNTED, YES), one)
        yield from _rules(limit, who)
        for each in quotas:
            assert each.quota_ratio is not None
            yield from _rules(limit, (*who, (CLASS, each.name)), each.quota_ratio)


def _filled(limit: Limit, *, like: Limit) -> Limit:
    """Return a limit that has whatever the other has, as much as a bucket holds where it had none."""

    def either(own: float | None, other: float | None) -> float | None:
        return UNLIMITED if own is None and other is not None else own

    return Limit(
        requests_per_second=either(limit.requests_per_second, like.requests_per_second),
        tokens_per_second=either(limit.tokens_per_second, like.tokens_per_second),
    )


def _rules(
    limit: Limit, entries: tuple[tuple[str, str], ...], ratio: float = 1.0
) -> Iterator[Rule]:
    if limit.requests_per_second is not None:
        yield Rule(entries, Unit.REQUESTS, limit.requests_per_second * ratio)
    if limit.tokens_per_second is not None:
        yield Rule(entries, Unit.TOKENS, limit.tokens_per_second * ratio)
