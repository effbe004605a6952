"""Rules and buckets: what is limited, and that a proxy's part of a limit is exactly that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_topology
from xds_server.core.limits import Limit, Tenant, TenantName, Tenants
from xds_server.core.model import ClassName, RequestClass
from xds_server.core.policy import AdmissionPolicy
from xds_server.resources.limits.admission import LimitTable, counts_tokens, limits_clients
from xds_server.resources.limits.limit_rules import (
    UNLIMITED,
    Bucket,
    Rule,
    Unit,
    listener_rules,
    tier_rules,
)

POLICY = AdmissionPolicy()
UINT32_MAX = 2**32 - 1


@given(
    rate=st.floats(1e-3, 1e9),
    share=st.floats(1e-4, 1.0),
    unit=st.sampled_from(Unit),
)
def test_a_bucket_fills_at_its_part_of_the_limit(rate, share, unit):
    bucket = Bucket.of(Rule((), unit, rate), share, POLICY)
    assert bucket.tokens_per_fill / bucket.fill_s == pytest.approx(rate * share)
    assert 1 <= bucket.tokens_per_fill <= UINT32_MAX
    assert 1 <= bucket.max_tokens <= UINT32_MAX
    assert bucket.fill_s >= 0.05  # Envoy's least.


@pytest.mark.parametrize(
    ("unit", "per_second", "share", "size"),
    [
        pytest.param(Unit.TOKENS, 100_000, 1.0, 40_000, id="burst_s of a large limit"),
        pytest.param(Unit.TOKENS, 100_000, 0.01, 4096, id="one request at a proxy of many"),
        pytest.param(Unit.TOKENS, 10, 1.0, 4096, id="one request of a small limit"),
        pytest.param(Unit.REQUESTS, 50, 1.0, 20, id="requests"),
        pytest.param(Unit.REQUESTS, 0.1, 1.0, 1, id="one request in ten seconds"),
        pytest.param(Unit.TOKENS, 1e9, 1.0, 400_000_000, id="the largest limit"),
    ],
)
def test_a_bucket_holds_a_burst_and_at_least_one_request(unit, per_second, share, size):
    assert Bucket.of(Rule((), unit, per_second), share, POLICY).max_tokens == size


def test_what_has_no_limit_has_no_limiter():
    topology = a_topology()
    assert not LimitTable(topology, POLICY)
    assert not limits_clients(topology)
    assert not counts_tokens(topology)


def test_a_model_is_limited_by_requests_and_by_tokens():
    model = replace(a_model(), limit=Limit(requests_per_second=5, tokens_per_second=1000))
    (rules,) = listener_rules(a_topology(model))
    assert [(rule.entries, rule.unit, rule.per_second) for rule in rules] == [
        ((("model", "chat"),), Unit.REQUESTS, 5),
        ((("model", "chat"),), Unit.TOKENS, 1000),
    ]


def test_classes_have_their_share_of_every_tenants_limit():
    tenants = Tenants(
        header="x-tenant",
        listed=(Tenant(name=TenantName("acme"), key="a", limit=Limit(requests_per_second=100)),),
        others=Limit(requests_per_second=10),
        missing=Limit(tokens_per_second=1000),
    )
    core = RequestClass(name=ClassName("core"), header="x-class", quota_ratio=0.6)
    rest = RequestClass(name=ClassName("rest"))
    topology = replace(a_topology(), tenants=tenants, classes=(core, rest))
    (rules,) = listener_rules(topology)
    found = {(rule.entries[1:], rule.unit.value): rule.per_second for rule in rules}
    assert found == {
        ((("tenant", "a"),), "requests"): 100,
        ((("tenant", "a"), ("class", "core")), "requests"): 60,
        ((("tenant", ""),), "requests"): 10,
        ((("tenant", ""), ("class", "core")), "requests"): 6,
        ((("nameless", "yes"),), "tokens"): 1000,
        ((("nameless", "yes"), ("class", "core")), "tokens"): 600,
    }


def test_a_listed_tenant_is_not_bound_by_limits_of_the_others():
    tenants = Tenants(
        header="x-tenant",
        listed=(Tenant(name=TenantName("a"), key="a", limit=Limit(requests_per_second=9)),),
        others=Limit(tokens_per_second=5),
    )
    (rules,) = listener_rules(replace(a_topology(), tenants=tenants))
    assert [(rule.entries[1][1], rule.unit.value, rule.per_second) for rule in rules] == [
        ("a", "requests", 9),
        ("a", "tokens", UNLIMITED),
        ("", "tokens", 5),
    ]
    assert Bucket.of(rules[1], 1.0, POLICY).max_tokens <= UINT32_MAX


def test_tokens_are_counted_only_where_something_limits_them():
    chat, code = a_model("chat"), a_model("code", prefix="/code/")
    limited = replace(chat, limit=Limit(tokens_per_second=1))
    topology = a_topology(limited, code)
    assert counts_tokens(topology)
    assert counts_tokens(topology, limited)
    assert not counts_tokens(topology, code)
    tiers = (replace(code.tiers[0], limit=Limit(tokens_per_second=1)), *code.tiers[1:])
    assert counts_tokens(topology, replace(code, tiers=tiers))
    assert [rule.per_second for rule in tier_rules(tiers[0])] == [1]
    tenants = Tenants(header="x", others=Limit(tokens_per_second=1))
    assert counts_tokens(replace(topology, tenants=tenants), code)


def test_equal_parts_are_equal_bytes_and_another_part_is_another_version():
    topology = a_topology(replace(a_model(), limit=Limit(tokens_per_second=1000)))
    table, again = LimitTable(topology, POLICY), LimitTable(topology, POLICY)
    assert table.resources(0.5) is table.resources(0.5)
    assert table.resources(0.5).version == again.resources(0.5).version
    assert table.resources(0.5).version != table.resources(0.25).version
    assert table.resources(0.5).version == again.resources(0.5).version


def test_memory_of_parts_is_bounded():
    topology = a_topology(replace(a_model(), limit=Limit(tokens_per_second=1000)))
    table = LimitTable(topology, POLICY)
    first = table.resources(1.0)
    for number in range(1, 1100):
        table.resources(1 / (number + 1))
    assert table.resources(1.0) is not first
    assert table.resources(1.0).version == first.version


def test_no_policy_makes_a_bucket_that_envoy_cannot_hold():
    policy = AdmissionPolicy(burst_s=1e6, largest_request_tokens=10**12)
    assert Bucket.of(Rule((), Unit.TOKENS, 1e9), 1.0, policy).max_tokens == UINT32_MAX
