"""Limits per tenant on a real Envoy: listed ones, all others one by one, those who do not say who they are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from multidict import CIMultiDict

from tests.fakes.limits_lab import JSON, LimitsLab, limits_lab
from xds_server.core.limits import Limit, Tenant, TenantName, Tenants
from xds_server.core.model import ClassName, RequestClass
from xds_server.core.policy import AdmissionPolicy

pytestmark = pytest.mark.envoy

SLOW = AdmissionPolicy(burst_s=1000, largest_request_tokens=1)
"""Buckets that hold a thousand seconds' worth, so that a test sees no refill."""


def tenants(**changes: object) -> Tenants:
    return Tenants(
        **{  # type: ignore[arg-type]
            "header": "x-tenant",
            "listed": (
                Tenant(name=TenantName("acme"), key="acme", limit=Limit(requests_per_second=0.006)),
            ),
            "others": Limit(requests_per_second=0.002),
            "missing": Limit(requests_per_second=0.001),
            **changes,
        }
    )


async def admitted(lab: LimitsLab, count: int, **headers: str) -> int:
    sent = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    replies = [await lab.ask(headers=sent) for _ in range(count)]
    assert {each.status for each in replies} <= {200, 429}
    return sum(each.status == 200 for each in replies)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LimitsLab]:
    async with limits_lab(tmp_path, tenants=tenants(), admission=SLOW) as found:
        yield found
        await found.assert_all_accepted()


async def test_every_tenant_has_a_bucket_of_its_own(lab: LimitsLab) -> None:
    assert await admitted(lab, 8, x_tenant="acme") == 6
    assert await admitted(lab, 4, x_tenant="other") == 2
    assert await admitted(lab, 4, x_tenant="another") == 2
    assert await admitted(lab, 4, x_tenant="ACME") == 2
    assert await admitted(lab, 4, x_tenant="") == 2
    assert await admitted(lab, 3) == 1
    assert await admitted(lab, 2, x_tenant="acme") == 0
    # Many more than Envoy's default of 20 buckets, and the first is still remembered.
    for number in range(100):
        assert await admitted(lab, 1, x_tenant=f"tenant-{number}") == 1
    assert await admitted(lab, 2, x_tenant="other") == 0


async def test_classes_have_shares_of_a_tenants_limit(tmp_path: Path) -> None:
    core = RequestClass(name=ClassName("core"), header="x-class", value="core", quota_ratio=0.5)
    rest = RequestClass(name=ClassName("rest"), quota_ratio=0.25)
    who = tenants(
        listed=(Tenant(name=TenantName("a"), key="a", limit=Limit(requests_per_second=0.008)),)
    )
    async with limits_lab(tmp_path, tenants=who, classes=(core, rest), admission=SLOW) as lab:
        assert await admitted(lab, 4, x_tenant="a") == 2
        assert await admitted(lab, 6, x_tenant="a", x_class="core") == 4
        assert await admitted(lab, 2, x_tenant="a", x_class="other") == 0
        await lab.assert_all_accepted()


async def test_a_tenants_tokens_count_whatever_the_model_and_unlimited_stays_unlimited(
    tmp_path: Path,
) -> None:
    who = tenants(listed=(), others=Limit(tokens_per_second=1), missing=Limit())
    async with limits_lab(tmp_path, tenants=who, admission=SLOW) as lab:
        sent = JSON | {"x-tenant": "a"}
        statuses = [(await lab.ask(b'{"max_tokens":294}', headers=sent)).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        refused = await lab.ask(b'{"max_tokens":-1}', headers=sent)
        assert refused.status == 400
        assert await admitted(lab, 5) == 5
        await lab.assert_all_accepted()


async def test_tenants_are_known_by_the_hash_of_their_key(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-secret").hexdigest()
    row = Tenant(name=TenantName("acme"), key=digest, limit=Limit(requests_per_second=0.006))
    who = tenants(header="authorization", hashed=True, listed=(row,))
    async with limits_lab(tmp_path, tenants=who, admission=SLOW) as lab:
        assert await admitted(lab, 8, authorization="Bearer sk-secret") == 6
        assert await admitted(lab, 1, authorization="bearer sk-secret") == 0
        assert await admitted(lab, 4, authorization="Bearer sk-other") == 2
        assert await admitted(lab, 4, authorization=f"Bearer {digest}") == 2
        assert await admitted(lab, 3) == 1
        await lab.assert_all_accepted()
        dump = await lab.envoys["one"].get("/config_dump")
        assert digest in dump
        assert "sk-secret" not in dump


HASH = hashlib.sha256(b"sk-secret").hexdigest()
GIVEN_TWICE = [
    pytest.param("x-tenant", False, "sk-secret", id="named"),
    pytest.param("x-api-key", True, HASH, id="hashed"),
    pytest.param("authorization", True, HASH, id="hashed, of a header that proxies join"),
]


@pytest.mark.parametrize(("header", "hashed", "key"), GIVEN_TWICE)
async def test_who_gives_the_header_twice_is_counted_as_what_engines_read(
    tmp_path: Path, header: str, hashed: bool, key: str
) -> None:
    """Else the second one, made up anew each time, would be a new bucket for whoever owns the first."""
    row = Tenant(name=TenantName("acme"), key=key, limit=Limit(requests_per_second=0.003))
    who = tenants(header=header, hashed=hashed, listed=(row,))
    async with limits_lab(tmp_path, tenants=who, admission=SLOW) as lab:
        read: Counter[str] = Counter()
        for number in range(10):
            for values in (("sk-secret", f"made-up-{number}"), (f"made-up-{number}", "sk-secret")):
                sent = CIMultiDict(JSON)
                sent.extend([(header, each) for each in values])
                if (await lab.ask(headers=sent)).status == 200:
                    # One value, so that nobody behind the proxy can choose another than was counted.
                    (value,) = lab.big.last_headers.getall(header)
                    read[value] += 1
        assert read.pop("sk-secret", 0) in (0, 3)
        assert set(read.values()) <= {1, 2}


async def test_spaces_around_a_key_make_no_other_tenant(tmp_path: Path) -> None:
    row = Tenant(name=TenantName("acme"), key=HASH, limit=Limit(requests_per_second=0.003))
    who = tenants(header="authorization", hashed=True, listed=(row,))
    async with limits_lab(tmp_path, tenants=who, admission=SLOW) as lab:
        said = ["Bearer sk-secret", "Bearer  sk-secret", "bearer \t sk-secret \t"]
        assert [await admitted(lab, 1, authorization=each) for each in said] == [1, 1, 1]
        assert [await admitted(lab, 1, authorization=each) for each in said] == [0, 0, 0]


async def test_what_a_tenant_is_refused_is_not_taken_from_the_model(tmp_path: Path) -> None:
    who = tenants(listed=(), others=Limit(requests_per_second=0.002), missing=Limit())
    limit = Limit(tokens_per_second=0.5)
    async with limits_lab(tmp_path, limit=limit, tenants=who, admission=SLOW) as lab:

        async def admitted_tokens(tenant: str, count: int) -> int:
            sent = JSON | {"x-tenant": tenant}
            replies = [await lab.ask(b'{"max_tokens": 90}', headers=sent) for _ in range(count)]
            return sum(each.status == 200 for each in replies)

        assert await admitted_tokens("greedy", 10) == 2
        assert [await admitted_tokens(name, 1) for name in "abcde"] == [1, 1, 1, 0, 0]


async def test_a_flood_of_a_tenants_refused_tokens_leaves_the_models_requests_to_others(
    tmp_path: Path,
) -> None:
    who = tenants(listed=(), others=Limit(tokens_per_second=0.1), missing=Limit())
    limit = Limit(requests_per_second=0.01)
    async with limits_lab(tmp_path, limit=limit, tenants=who, admission=SLOW) as lab:

        async def count(tenant: str, number: int) -> int:
            sent = JSON | {"x-tenant": tenant}
            replies = [await lab.ask(b'{"max_tokens": 90}', headers=sent) for _ in range(number)]
            return sum(each.status == 200 for each in replies)

        assert await count("greedy", 30) == 1
        assert [await count(name, 1) for name in "abcdefghijk"] == [1] * 9 + [0] * 2
        await lab.assert_all_accepted()


async def test_limits_of_the_others_do_not_bind_a_listed_tenant(tmp_path: Path) -> None:
    row = Tenant(name=TenantName("acme"), key="acme", limit=Limit(requests_per_second=0.006))
    who = tenants(listed=(row,), others=Limit(tokens_per_second=0.1), missing=Limit())
    async with limits_lab(tmp_path, tenants=who, admission=SLOW) as lab:
        body = b'{"max_tokens": 90}'
        for name, expected in (("acme", 6), ("other", 1)):
            sent = JSON | {"x-tenant": name}
            statuses = [(await lab.ask(body, headers=sent)).status for _ in range(8)]
            assert statuses == [200] * expected + [429] * (8 - expected)
        await lab.assert_all_accepted()
