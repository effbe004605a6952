"""What a tier's options about health, affinity and telemetry mean together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xds_server.config.problems import MISSING, Problem, join
from xds_server.config.values import is_taken

_OPTIONS = ("affinity", "health_path", "telemetry")
"""Options of tiers with engines."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A cookie's name, RFC 6265 section 4.1.1."""


def check_tiers(path: str, model: dict[str, Any], policy: dict[str, Any]) -> Iterator[Problem]:
    """Yield every problem of a model's tiers that are each well-formed.

    Args:
        path: of the model.
        model: as written.
        policy: the section of the policy, as written.
    """
    health = policy.get("health")
    is_active = isinstance(health, dict) and health.get("active") is True
    first: tuple[str, tuple[Any, ...]] | None = None
    tiers = model.get("tiers")
    for index, tier in enumerate(tiers if isinstance(tiers, list) else []):
        if not isinstance(tier, dict):
            continue
        where = join(join(path, "tiers"), index)
        if tier.get("answer") is not None:
            for option in _OPTIONS:
                if tier.get(option) is not None:
                    expected = "nothing: a static tier has no engines"
                    yield Problem.of(join(where, option), tier[option], expected)
            continue
        if isinstance(tier.get("health_path"), str) and not is_active:
            yield Problem.of(
                join(where, "health_path"),
                tier["health_path"],
                "policy.health.active: true with it; proxies check nothing otherwise",
            )
        affinity = tier.get("affinity")
        if not isinstance(affinity, dict):
            continue
        at = join(where, "affinity")
        yield from _check_affinity(at, affinity)
        key = tuple(affinity.get(name) for name in ("header", "cookie", "cookie_ttl_s"))
        key = tuple(part.lower() if isinstance(part, str) else part for part in key)
        if first is None:
            first = at, key
        elif first[1] != key:
            expected = f"the header or cookie of the model's other tiers (see {first[0]})"
            yield Problem.of(at, affinity, expected)


def _check_affinity(path: str, affinity: dict[str, Any]) -> Iterator[Problem]:
    header, cookie = affinity.get("header"), affinity.get("cookie")
    if (header is None) == (cookie is None):
        yield Problem.of(path, affinity, "either a header or a cookie that names the session")
    if affinity.get("cookie_ttl_s") is not None and cookie is None:
        yield Problem.of(join(path, "cookie"), MISSING, "the cookie that lives cookie_ttl_s")
    if isinstance(cookie, str) and cookie and not _TOKEN.fullmatch(cookie):
        yield Problem.of(join(path, "cookie"), cookie, "the name of a cookie, like session")
    if isinstance(header, str) and is_taken(header):
        expected = "a header that differs from session to session"
        yield Problem.of(join(path, "header"), header, expected)
