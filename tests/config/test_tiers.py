"""Health checks, affinity and telemetry of tiers: what the file may say, and what it means."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError
from xds_server.core.model import Affinity, AffinityPolicy, Telemetry
from xds_server.core.policy import HealthPolicy

CHECKED = {"health": {"active": True}}
HEADER = {"header": "x-session-id"}


def document(
    *,
    primary: dict[str, Any] | None = None,
    fallback: dict[str, Any] | None = None,
    static: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
) -> str:
    def tier(name: str, port: int) -> dict[str, Any]:
        return {"name": name, "instances": [{"name": name, "address": f"127.0.0.1:{port}"}]}

    tiers = [
        tier("primary", 8001) | (primary or {}),
        tier("fallback", 8002) | (fallback or {}),
        {"name": "static", "answer": {"json": {}}} | (static or {}),
    ]
    chat = {"name": "chat", "tiers": tiers} | (model or {})
    return yaml.safe_dump({"models": [chat], "policy": policy or {}})


def tiers(**written: Any) -> Any:
    return load_text(document(**written)).topology.models[0].tiers


def problems_of(**written: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        tiers(**written)
    return [f"{each.path}: {each.value}: {each.expected}" for each in caught.value.problems]


def test_without_a_word_a_tier_has_none_of_it():
    for tier in tiers():
        assert (tier.affinity, tier.health_path) == (None, None)
        assert tier.telemetry is Telemetry.AGENTS
    assert load_text(document()).policy.health == HealthPolicy()
    assert not HealthPolicy().active


def test_proxies_check_engines_where_the_policy_says_so_and_a_tier_may_have_its_own_path():
    health = {"active": True, "path": "/ping", "interval_s": 2, "timeout_s": 1.5, "unhealthy": 2}
    config = load_text(document(policy={"health": health}, fallback={"health_path": "/healthz"}))
    assert config.policy.health == HealthPolicy(
        active=True, path="/ping", interval_s=2, timeout_s=1.5, unhealthy=2
    )
    first, second, _ = config.topology.models[0].tiers
    assert (first.health_path, second.health_path) == (None, "/healthz")


def test_a_session_is_named_by_a_header_or_a_cookie():
    first, second, static = tiers(
        primary={"affinity": {"header": "X-Session-Id"}},
        fallback={"affinity": {"policy": "ring_hash", "header": "x-session-id"}},
    )
    assert first.affinity == Affinity(policy=AffinityPolicy.MAGLEV, header="x-session-id")
    assert second.affinity == Affinity(policy=AffinityPolicy.RING_HASH, header="x-session-id")
    assert static.affinity is None
    (first, *_) = tiers(primary={"affinity": {"header": "s", "overflow_ratio": 1.5}})
    assert first.affinity == Affinity(header="s", overflow_ratio=1.5)
    (first, *_) = tiers(primary={"affinity": {"cookie": "session", "cookie_ttl_s": 0}})
    assert first.affinity == Affinity(cookie="session", cookie_ttl_s=0.0)


def test_telemetry_is_a_models_and_a_tiers_own_word_wins():
    first, second, static = tiers(model={"telemetry": "orca"}, fallback={"telemetry": "agents"})
    assert first.telemetry is Telemetry.ORCA
    assert second.telemetry is Telemetry.AGENTS
    assert static.telemetry is Telemetry.AGENTS, "a static tier has no engine that could report"


PRIMARY = "models[0].tiers[0]"
PROBLEMS = {
    "a path without checks": (
        {"primary": {"health_path": "/health"}},
        (
            f'{PRIMARY}.health_path: "/health": policy.health.active: true with it; '
            "proxies check nothing otherwise"
        ),
    ),
    "a path without slash": (
        {"primary": {"health_path": "health"}, "policy": CHECKED},
        f'{PRIMARY}.health_path: "health": a path that starts with /',
    ),
    "the policy's path without slash": (
        {"policy": {"health": {"active": True, "path": "health"}}},
        'policy.health.path: "health": a path that starts with /',
    ),
    "a time-out of nothing": (
        {"policy": {"health": {"timeout_s": 0}}},
        "policy.health.timeout_s: 0: a number of at least 0.001",
    ),
    "no failed check": (
        {"policy": {"health": {"unhealthy": 0}}},
        "policy.health.unhealthy: 0: a number above 0",
    ),
    "nothing names the session": (
        {"primary": {"affinity": {"policy": "maglev"}}},
        (
            f'{PRIMARY}.affinity: {{"policy": "maglev"}}: '
            "either a header or a cookie that names the session"
        ),
    ),
    "two things name the session": (
        {"primary": {"affinity": {"header": "a", "cookie": "b"}}},
        (
            f'{PRIMARY}.affinity: {{"cookie": "b", "header": "a"}}: '
            "either a header or a cookie that names the session"
        ),
    ),
    "a time to live of a header": (
        {"primary": {"affinity": {"header": "a", "cookie_ttl_s": 1}}},
        f"{PRIMARY}.affinity.cookie: (missing): the cookie that lives cookie_ttl_s",
    ),
    "no name of a header": (
        {"primary": {"affinity": {"header": "a b"}}},
        f'{PRIMARY}.affinity.header: "a b": the name of a header',
    ),
    "no name of a cookie": (
        {"primary": {"affinity": {"cookie": "a;b"}}},
        f'{PRIMARY}.affinity.cookie: "a;b": the name of a cookie, like session',
    ),
    "a header that is no session": (
        {"primary": {"affinity": {"header": "Host"}}},
        f'{PRIMARY}.affinity.header: "Host": a header that differs from session to session',
    ),
    "less than its share": (
        {"primary": {"affinity": {"header": "a", "overflow_ratio": 0.9}}},
        f"{PRIMARY}.affinity.overflow_ratio: 0.9: a number of at least 1",
    ),
    "an unknown policy": (
        {"primary": {"affinity": {"policy": "random", "header": "a"}}},
        f"{PRIMARY}.affinity.policy: \"random\": one of 'maglev' or 'ring_hash'",
    ),
    "tiers that disagree": (
        {"primary": {"affinity": HEADER}, "fallback": {"affinity": {"cookie": "session"}}},
        (
            'models[0].tiers[1].affinity: {"cookie": "session"}: '
            f"the header or cookie of the model's other tiers (see {PRIMARY}.affinity)"
        ),
    ),
    "a static tier with affinity": (
        {"static": {"affinity": HEADER}},
        (
            'models[0].tiers[2].affinity: {"header": "x-session-id"}: '
            "nothing: a static tier has no engines"
        ),
    ),
    "a static tier with telemetry": (
        {"static": {"telemetry": "orca"}},
        'models[0].tiers[2].telemetry: "orca": nothing: a static tier has no engines',
    ),
    "an unknown telemetry": (
        {"primary": {"telemetry": "otel"}},
        f"{PRIMARY}.telemetry: \"otel\": one of 'agents' or 'orca'",
    ),
}


@pytest.mark.parametrize(("written", "expected"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_what_makes_no_sense_is_refused_with_path_value_and_expectation(written, expected):
    assert problems_of(**written) == [expected]
