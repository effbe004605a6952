"""What limits mean together with tiers, tenants, classes and the policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xds_server.config.problems import MISSING, Problem, join
from xds_server.config.values import is_taken
from xds_server.core.policy import AdmissionPolicy

_SHA_256 = re.compile(r"[0-9a-f]{64}")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
"""What a header can say; proxies drop spaces around it."""
_RATES = ("requests_per_second", "tokens_per_second")


def check_limits(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield every problem between limits that are each well-formed, in the document as it is written."""
    for index, model in enumerate(_list(raw.get("models"))):
        path = join("models", index)
        for number, tier in enumerate(_list(_dict(model).get("tiers"))):
            yield from _check_tier(join(join(path, "tiers"), number), _dict(tier))
    tenants = raw.get("tenants")
    if isinstance(tenants, dict):
        yield from _check_tenants(tenants)
    yield from _check_policy(_dict(_dict(raw.get("policy")).get("admission")))


def doubts(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield what works and is hardly meant in a document without problems."""
    for index, model in enumerate(_list(raw.get("models"))):
        for number, tier in enumerate(_list(_dict(model).get("tiers"))):
            limit = _dict(_dict(tier).get("limit"))
            concurrency, queue = limit.get("concurrency"), limit.get("queue")
            if concurrency and queue and queue < concurrency:
                at = join(join(join(join("models", index), "tiers"), number), "limit")
                expected = f"none, or at least concurrency ({concurrency}): as many may wait anyhow"
                yield Problem.of(join(at, "queue"), queue, expected)
    if raw.get("tenants") is not None:
        return
    for index, row in enumerate(_list(raw.get("classes"))):
        ratio = _dict(row).get("quota_ratio")
        if ratio is not None:
            at = join(join("classes", index), "quota_ratio")
            yield Problem.of(at, ratio, "a section tenants, whose limits it is a share of")


def _check_tier(path: str, tier: dict[str, Any]) -> Iterator[Problem]:
    limit = tier.get("limit")
    if not isinstance(limit, dict):
        return
    at = join(path, "limit")
    if tier.get("answer") is not None and limit:
        yield Problem.of(at, limit, "nothing: the static tier answers whatever comes")
    elif limit.get("queue") is not None and limit.get("concurrency") is None:
        expected = "the number of requests in progress after which others have to wait"
        yield Problem.of(join(at, "concurrency"), MISSING, expected)


def _check_tenants(tenants: dict[str, Any]) -> Iterator[Problem]:
    header = tenants.get("header")
    if isinstance(header, str) and is_taken(header):
        expected = "a header that names a tenant, like authorization or x-tenant"
        yield Problem.of("tenants.header", header, expected)
    hashed = tenants.get("hashed") is True
    names: dict[str, str] = {}
    keys: dict[str, str] = {}
    for index, row in enumerate(_list(tenants.get("listed"))):
        path = join("tenants.listed", index)
        tenant = _dict(row)
        for kind, seen in (("name", names), ("key", keys)):
            value = tenant.get(kind)
            if not isinstance(value, str) or not value:
                continue
            at = join(path, kind)
            if kind == "key":
                yield from _check_key(at, value, hashed=hashed)
            if seen.setdefault(value, at) != at:
                shown = "(secret)" if kind == "key" and not hashed else value
                yield Problem.of(
                    at, shown, f"a {kind} that no other tenant has (see {seen[value]})"
                )
        if isinstance(tenant.get("limit"), dict) and not _has_rate(tenant["limit"]):
            yield Problem.of(join(path, "limit"), tenant["limit"], f"{' or '.join(_RATES)}")
    limits = [tenants.get("others"), tenants.get("missing")]
    if not _list(tenants.get("listed")) and not any(_has_rate(_dict(each)) for each in limits):
        yield Problem.of("tenants", tenants, "a limit in listed, others or missing")


def _check_key(path: str, key: str, *, hashed: bool) -> Iterator[Problem]:
    """A wrong key may still be a secret, so it is not shown."""
    if hashed and not _SHA_256.fullmatch(key):
        expected = "a SHA-256 in hex: 64 of the characters 0-9 and a-f"
        yield Problem.of(path, "(hidden)", expected)
    elif not hashed and not _VALUE.fullmatch(key):
        yield Problem.of(path, "(hidden)", "a header's value: printable ASCII, no space at an end")


def _check_policy(admission: dict[str, Any]) -> Iterator[Problem]:
    default = AdmissionPolicy()
    largest = admission.get("largest_request_tokens", default.largest_request_tokens)
    usual = admission.get("default_max_tokens", default.default_max_tokens)
    if not (_is_number(largest) and _is_number(usual)) or usual <= largest:
        return
    if "default_max_tokens" in admission:
        expected = f"at most policy.admission.largest_request_tokens ({largest:g})"
        yield Problem.of("policy.admission.default_max_tokens", usual, expected)
    else:
        expected = f"at least policy.admission.default_max_tokens ({usual:g})"
        yield Problem.of("policy.admission.largest_request_tokens", largest, expected)


def _has_rate(limit: dict[str, Any]) -> bool:
    return any(limit.get(name) is not None for name in _RATES)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
