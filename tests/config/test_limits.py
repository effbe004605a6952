"""Limits, tenants and how they fit with tiers and classes: each problem with path, value, expectation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError
from xds_server.core.limits import NO_LIMIT, Limit, Tenant, TenantName, Tenants

DESIGN = Path(__file__).parent / "design.yaml"
HASH = "ab" * 32


def written(**changes: Any) -> str:
    """The file of the design with other values at dotted paths."""
    document = yaml.safe_load(DESIGN.read_text())
    for path, value in changes.items():
        target, *parts = document, *path.split("__")
        for part in parts[:-1]:
            key = int(part[1:]) if part.startswith("i") and part[1:].isdigit() else part
            target = target[key] if isinstance(key, int) else target.setdefault(key, {})
        target[parts[-1]] = value
    return yaml.safe_dump(document)


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text)
    return [str(each) for each in caught.value.problems]


def test_limits_of_models_tiers_and_tenants_are_read():
    listed = [{"name": "acme", "key": HASH, "limit": {"requests_per_second": 5}}]
    config = load_text(
        written(
            models__i0__limit={"tokens_per_second": 1e6},
            models__i0__tiers__i0__limit={"concurrency": 40, "queue": 10},
            tenants={
                "header": "Authorization",
                "hashed": True,
                "listed": listed,
                "others": {"tokens_per_second": 100},
            },
            policy__admission={"burst_s": 1.5, "prompt_tokens_per_byte": 0.3},
        )
    )
    model = config.topology.models[0]
    assert model.limit == Limit(tokens_per_second=1e6)
    assert model.tiers[0].limit == Limit(concurrency=40, queue=10)
    assert model.tiers[0].limit.is_set
    assert not model.tiers[0].limit.has_rate
    assert config.topology.tenants == Tenants(
        header="authorization",
        hashed=True,
        listed=(Tenant(name=TenantName("acme"), key=HASH, limit=Limit(requests_per_second=5)),),
        others=Limit(tokens_per_second=100),
        missing=NO_LIMIT,
    )
    assert config.policy.admission.burst_s == 1.5


def tenants(**changes: Any) -> dict[str, Any]:
    return {"header": "x-tenant", "others": {"requests_per_second": 1}} | changes


def listed(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    given = [{"name": "a", "key": "k", "limit": {"requests_per_second": 1}} | row for row in rows]
    return tenants(listed=given, **changes)


CASES = {
    "zero": (
        {"models__i0__limit": {"tokens_per_second": 0}},
        "models[0].limit.tokens_per_second: 0: expected a number of at least 0.001",
    ),
    "more than a bucket holds": (
        {"models__i0__limit": {"tokens_per_second": 2e9}},
        "models[0].limit.tokens_per_second: 2000000000.0: expected a number of at most 1e+09",
    ),
    "concurrency of a model": (
        {"models__i0__limit": {"concurrency": 4}},
        (
            "models[0].limit.concurrency: 4: expected no such key; known here: "
            "requests_per_second, tokens_per_second"
        ),
    ),
    "a limit on the static tier": (
        {"models__i0__tiers__i2__limit": {"requests_per_second": 1}},
        (
            'models[0].tiers[2].limit: {"requests_per_second": 1}: expected nothing: '
            "the static tier answers whatever comes"
        ),
    ),
    "a queue of nothing": (
        {"models__i0__tiers__i0__limit": {"queue": 4}},
        (
            "models[0].tiers[0].limit.concurrency: (missing): expected the number of requests in "
            "progress after which others have to wait"
        ),
    ),
    "a header that is no name": (
        {"tenants": tenants(header="x tenant")},
        'tenants.header: "x tenant": expected the name of a header',
    ),
    "a header of HTTP": (
        {"tenants": tenants(header="Host")},
        (
            'tenants.header: "Host": expected a header that names a tenant, like authorization or '
            "x-tenant"
        ),
    ),
    "a header of the proxies": (
        {"tenants": tenants(header="x-estimated-tokens")},
        (
            'tenants.header: "x-estimated-tokens": expected a header that names a tenant, like '
            "authorization or x-tenant"
        ),
    ),
    "no limit at all": (
        {"tenants": {"header": "x-tenant"}},
        'tenants: {"header": "x-tenant"}: expected a limit in listed, others or missing',
    ),
    "a tenant without a limit": (
        {"tenants": listed({"limit": {}})},
        "tenants.listed[0].limit: {}: expected requests_per_second or tokens_per_second",
    ),
    "two tenants of a name": (
        {"tenants": listed({}, {"key": "l"})},
        (
            'tenants.listed[1].name: "a": expected a name that no other tenant has '
            "(see tenants.listed[0].name)"
        ),
    ),
    "two tenants of a key, which is not shown": (
        {"tenants": listed({}, {"name": "b"})},
        (
            'tenants.listed[1].key: "(secret)": expected a key that no other tenant has '
            "(see tenants.listed[0].key)"
        ),
    ),
    "a key that no header can say": (
        {"tenants": listed({"key": "k "})},
        (
            'tenants.listed[0].key: "(hidden)": expected a header\'s value: printable ASCII, no space '
            "at an end"
        ),
    ),
    "a key where a hash should be": (
        {"tenants": listed({"key": "sk-secret"}, hashed=True)},
        (
            'tenants.listed[0].key: "(hidden)": expected a SHA-256 in hex: 64 of the characters 0-9 '
            "and a-f"
        ),
    ),
    "shares over 100 %": (
        {
            "tenants": tenants(),
            "classes": [
                {"name": "core", "match": {"header": "x-c"}, "quota_ratio": 0.75},
                {"name": "rest", "quota_ratio": 0.5},
            ],
        },
        "classes[1].quota_ratio: 0.5: expected at most 0.25: the classes' shares would be 1.25",
    ),
    "a default that never passes": (
        {"policy__admission": {"default_max_tokens": 5000}},
        (
            "policy.admission.default_max_tokens: 5000: expected at most "
            "policy.admission.largest_request_tokens (4096)"
        ),
    ),
    "a largest request below the default": (
        {"policy__admission": {"largest_request_tokens": 100}},
        (
            "policy.admission.largest_request_tokens: 100: expected at least "
            "policy.admission.default_max_tokens (512)"
        ),
    ),
    "no burst": (
        {"policy__admission": {"burst_s": 0}},
        "policy.admission.burst_s: 0: expected a number of at least 0.001",
    ),
    "no division": (
        {"policy__admission": {"divisions": 0}},
        "policy.admission.divisions: 0: expected a number above 0",
    ),
}


@pytest.mark.parametrize(("changes", "problem"), CASES.values(), ids=CASES.keys())
def test_one_wrong_value_is_one_problem(changes, problem):
    assert problems_of(written(**changes)) == [problem]


@pytest.mark.parametrize(
    "changes",
    [
        {"tenants": "acme"},
        {"tenants": {"header": 5, "listed": {"a": 1}}},
        {"tenants": {"header": "x-tenant", "listed": ["acme", {"name": 5, "key": 6, "limit": 7}]}},
        {"models__i0__tiers__i0__limit": "none"},
        {"policy__admission": "strict"},
        {"policy__admission": {"largest_request_tokens": "many"}},
        {"classes": [5], "models": "none"},
    ],
    ids=str,
)
def test_wrong_shapes_are_told_and_hide_nothing(changes):
    assert problems_of(written(**changes))


def test_a_share_of_no_tenants_limits_is_doubted():
    classes = [{"name": "core", "match": {"prefix": "/v1/a"}, "quota_ratio": 0.5}, {"name": "rest"}]
    (doubt,) = load_text(written(classes=classes)).doubts
    assert str(doubt) == (
        "classes[0].quota_ratio: 0.5: expected a section tenants, whose limits it is a share of"
    )
    assert not load_text(written(classes=classes, tenants=tenants())).doubts


@pytest.mark.parametrize(
    ("limit", "doubted"),
    [
        ({"concurrency": 40, "queue": 10}, ["models[0].tiers[0].limit.queue"]),
        ({"concurrency": 40, "queue": 40}, []),
        ({"concurrency": 40, "queue": 0}, []),
        ({"concurrency": 40}, []),
    ],
)
def test_a_queue_that_is_shorter_than_what_may_wait_for_connections_is_doubted(limit, doubted):
    found = load_text(written(models__i0__tiers__i0__limit=limit)).doubts
    assert [each.path for each in found if "limit" in each.path] == doubted
