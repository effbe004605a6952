from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from xds_server.config.load import load_file, load_text
from xds_server.config.problems import ConfigError
from xds_server.core.limits import Limit
from xds_server.core.model import MaxTokens
from xds_server.core.policy import Policy, Unreadable, VramMode

DESIGN = Path(__file__).parent / "design.yaml"

MINIMAL: dict[str, Any] = {
    "models": [
        {
            "name": "chat",
            "tiers": [
                {"name": "primary", "instances": [{"name": "a", "address": "127.0.0.1:1"}]},
                {"name": "static", "answer": {"json": {}}},
            ],
        }
    ]
}


def problems_of(document: Any) -> list[str]:
    text = document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False)
    with pytest.raises(ConfigError) as caught:
        load_text(text)
    return [f"{each.path}: {each.value}: {each.expected}" for each in caught.value.problems]


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return MINIMAL with one value set (or, with `...`, removed)."""
    document = copy.deepcopy(MINIMAL)
    at: Any = document
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        at = at[part] if isinstance(part, int) else at.setdefault(part, {})
    if value is ...:
        del at[last]
    elif isinstance(last, int) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return document


def test_the_file_of_the_design_loads_as_it_is():
    config = load_file(DESIGN)
    (model,) = config.topology.models
    primary, fallback, static = model.tiers
    assert (config.topology.listener_host, config.topology.listener_port) == ("0.0.0.0", 10000)
    assert (model.name, model.domains, model.prefix) == ("chat", ("*",), "/v1/")
    assert [(each.id, each.host, each.port, each.capacity) for each in primary.instances] == [
        ("a100-0", "127.0.0.1", 8001, 40.0),
        ("a100-1", "127.0.0.1", 8002, 40.0),
    ]
    assert primary.serves == "llama-3-70b"
    assert fallback.limit == Limit(requests_per_second=50, tokens_per_second=20000)
    assert fallback.max_tokens is not None
    assert (fallback.max_tokens.scale, fallback.max_tokens.floor) == (0.5, 16)
    assert static.is_static
    assert static.answer is not None
    assert static.answer.status == 200
    assert "busy" in json.dumps(static.answer.body)
    assert config.policy == Policy()
    assert not config.discovers


def test_every_threshold_can_be_left_out_and_every_one_can_be_set():
    assert load_text(yaml.safe_dump(MINIMAL)).policy == Policy()
    document = MINIMAL | {
        "policy": {
            "vram": {"mode": "absolute", "sustained_s": 5},
            "recovery": {"stages": [0.5, 1], "hold_s": 1},
            "telemetry": {"interval_s": 0.25},
        }
    }
    policy = load_text(yaml.safe_dump(document)).policy
    assert policy.vram.mode is VramMode.ABSOLUTE
    assert policy.recovery.stages == (0.5, 1.0)
    assert policy.telemetry.interval_s == 0.25
    assert policy.telemetry.blind_after_s == Policy().telemetry.blind_after_s


def test_a_switch_takes_true_and_false_and_an_optional_number_takes_null():
    failures = {"static_on_5xx": False, "answer_timeout_s": None}

    policy = load_text(yaml.safe_dump(changed("policy.failures", failures))).policy

    assert policy.failures.static_on_5xx is False
    assert policy.failures.answer_timeout_s is None


def test_how_bodies_are_rewritten_can_be_set():
    document = changed(
        "models.0.tiers.0.max_tokens", {"scale": 0.25, "floor": 8, "when_absent": 99}
    )
    document["policy"] = {"rewrite": {"unreadable": "forward"}}

    config = load_text(yaml.safe_dump(document))

    short = config.topology.models[0].tiers[0].max_tokens
    assert short == MaxTokens(scale=0.25, floor=8, when_absent=99)
    assert config.policy.rewrite.unreadable is Unreadable.FORWARD


def test_a_tier_may_let_agents_register_its_instances():
    config = load_text(
        yaml.safe_dump(changed("models.0.tiers.0.instances", {"discover": "agents"}))
    )
    assert config.discovers
    assert config.topology.models[0].tiers[0].discovers


TIER = "models[0].tiers[0]"
INSTANCE = f"{TIER}.instances[0]"

BAD_VALUES = [
    pytest.param(
        "models.0.tiers.0.max_tokens", {"scale": 0},
        f"{TIER}.max_tokens.scale: 0: a number above 0",
        id="max-tokens-to-nothing",
    ),
    pytest.param(
        "models.0.tiers.0.max_tokens", {"scale": 1.5},
        f"{TIER}.max_tokens.scale: 1.5: a number of at most 1",
        id="max-tokens-longer-than-asked",
    ),
    pytest.param(
        "models.0.tiers.0.max_tokens", {"when_absent": 0},
        f"{TIER}.max_tokens.when_absent: 0: a number of at least 1",
        id="max-tokens-when-absent",
    ),
    pytest.param(
        "models.0.tiers.1.max_tokens", {},
        "models[0].tiers[1].max_tokens: {}: no max_tokens: a tier with an answer generates nothing",
        id="max-tokens-of-a-static-tier",
    ),
    pytest.param(
        "policy.rewrite.unreadable", "drop",
        "policy.rewrite.unreadable: \"drop\": one of 'refuse' or 'forward'",
        id="unreadable-bodies",
    ),
    pytest.param("models", [], "models: []: at least one entry", id="no-models"),
    pytest.param("models", ..., None, id="models-missing"),
    pytest.param("models.0.name", "-x", None, id="bad-name"),
    pytest.param(
        "models.0.tiers.0.instances", [], f"{TIER}.instances: []: at least one instance",
        id="empty-tier",
    ),
    pytest.param(
        "models.0.tiers.0.instances",
        ...,
        f"{TIER}.instances: (missing): a list of instances, {{discover: agents}}, or (on the last "
        "tier) an answer",
        id="tier-without-instances",
    ),
    pytest.param(
        "models.0.tiers.0.instances",
        {"discover": "dns"},
        f"{TIER}.instances.discover: \"dns\": one of 'agents'",
        id="unknown-discovery",
    ),
    pytest.param(
        "models.0.tiers.0.instances",
        "a100-0",
        f'{TIER}.instances: "a100-0": a list',
        id="instances-not-a-list",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.address",
        "gpu-7:8000",
        f'{INSTANCE}.address: "gpu-7:8000": ip:port, like 10.0.0.7:8000 '
        "(the host is not an IP address)",
        id="host-name-as-address",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.address",
        "10.0.0.7",
        f'{INSTANCE}.address: "10.0.0.7": ip:port, like 10.0.0.7:8000 (no port)',
        id="address-without-port",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.address",
        "10.0.0.7:70000",
        f'{INSTANCE}.address: "10.0.0.7:70000": ip:port, like 10.0.0.7:8000 '
        "(the port is not 1-65535)",
        id="port-out-of-range",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.address",
        "0.0.0.0:8000",
        f'{INSTANCE}.address: "0.0.0.0:8000": ip:port, like 10.0.0.7:8000 '
        "(0.0.0.0 is every address of a host and no address to connect to)",
        id="every-address",
    ),
    pytest.param(
        "models.0.match.domains",
        ["*", "*.a.b", "a.*", "a*b"],
        'models[0].match.domains[3]: "a*b": a host name, exact or with a * at one end, '
        "like *.example.com",
        id="star-in-the-middle",
    ),
    pytest.param(
        "models.0.match.domains",
        ["*a*"],
        'models[0].match.domains[0]: "*a*": a host name, exact or with a * at one end, '
        "like *.example.com",
        id="star-at-both-ends",
    ),
    pytest.param(
        "models.0.match.domains",
        ["http://a.b"],
        'models[0].match.domains[0]: "http://a.b": a host name, exact or with a * at one end, '
        "like *.example.com",
        id="url-as-domain",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.capacity",
        0,
        f"{INSTANCE}.capacity: 0: a number above 0",
        id="no-capacity",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.capacity",
        "40",
        f'{INSTANCE}.capacity: "40": a number',
        id="text-for-a-number",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.capacity",
        True,
        f"{INSTANCE}.capacity: true: a number",
        id="truth-for-a-number",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.capacity",
        float("nan"),
        f"{INSTANCE}.capacity: NaN: a number",
        id="not-a-number",
    ),
    pytest.param(
        "models.0.tiers.0.instances.0.capacty",
        40,
        f"{INSTANCE}.capacty: 40: no such key; known here: name, address, capacity",
        id="unknown-key-deep",
    ),
    pytest.param(
        "modles", [], "modles: []: no such key; known here: listener, models, classes, tenants, istio, policy, server",
        id="unknown-key-top",
    ),
    pytest.param(
        "policy.kv.hihg", 0.5,
        "policy.kv.hihg: 0.5: no such key; known here: high, critical, margin, hold_s",
        id="unknown-threshold",
    ),
    pytest.param(
        "models.0.tiers.0.instances.1",
        {"name": "a", "address": "127.0.0.1:2"},
        f'{TIER}.instances[1].name: "a": a name that no other instance of the fleet has '
        f"(see {INSTANCE}.name)",
        id="duplicate-instance",
    ),
    pytest.param(
        "models.0.tiers.0.instances.1",
        {"name": "b", "address": "127.0.0.1:1"},
        f'{TIER}.instances[1].address: "127.0.0.1:1": an address that no other instance of the '
        f"fleet has (see {INSTANCE}.address)",
        id="duplicate-address",
    ),
    pytest.param(
        "models.0.tiers.1.name",
        "primary",
        'models[0].tiers[1].name: "primary": a name that no other tier of this model has '
        "(see models[0].tiers[0].name)",
        id="duplicate-tier",
    ),
    pytest.param(
        "models.0.tiers.1",
        {"name": "more", "instances": [{"name": "b", "address": "127.0.0.1:2"}]},
        'models[0].tiers[1]: "more": the last tier is static: add one with an answer after it',
        id="last-tier-not-static",
    ),
    pytest.param(
        "models.0.tiers.2",
        {"name": "again", "answer": {"json": {}}},
        'models[0].tiers[1].answer: {"json": {}}: only the last tier of a model is static',
        id="static-in-the-middle",
    ),
    pytest.param(
        "models.0.tiers.1.instances",
        [{"name": "b", "address": "127.0.0.1:2"}],
        'models[0].tiers[1].instances: [{"name": "b", "address": "127.0.0.1:2"}]: '
        "no instances: a tier with an answer is static",
        id="static-with-instances",
    ),
    pytest.param(
        "models.0.tiers",
        [{"name": "static", "answer": {"json": {}}}],
        'models[0].tiers: ["static"]: at least one tier with instances before the static one',
        id="only-static",
    ),
    pytest.param(
        "models.0.tiers.1.answer.status", 99,
        "models[0].tiers[1].answer.status: 99: a number of at least 200", id="bad-status",
    ),
    pytest.param(
        "models.0.match.prefix", "v1", 'models[0].match.prefix: "v1": a path that starts with /',
        id="bad-prefix",
    ),
    pytest.param(
        "listener.address", "everywhere", 'listener.address: "everywhere": an IP address',
        id="bad-listener",
    ),
    pytest.param(
        "listener.port", 1.5, "listener.port: 1.5: a whole number", id="fraction-for-a-port"
    ),
    pytest.param(
        "policy.kv.high", 0.97, "policy.kv.high: 0.97: below policy.kv.critical (0.95)",
        id="watermarks-out-of-order",
    ),
    pytest.param(
        "policy.kv.critical", 0.7, "policy.kv.critical: 0.7: above policy.kv.high (0.8)",
        id="watermarks-out-of-order-by-the-other",
    ),
    pytest.param(
        "policy.kv.high", 80, "policy.kv.high: 80: a number of at most 1", id="percent-for-a-ratio"
    ),
    pytest.param(
        "policy.kv.margin", 0.9, "policy.kv.margin: 0.9: below policy.kv.high (0.8)",
        id="margin-above-the-watermark",
    ),
    pytest.param(
        "policy.recovery.stages", [0.3, 0.1, 1.0],
        "policy.recovery.stages: [0.3, 0.1, 1.0]: ceilings above 0 that rise and end with 1.0, "
        "like [0.1, 0.3, 1.0]",
        id="stages-falling",
    ),
    pytest.param(
        "policy.recovery.stages", [0.1, 0.3],
        "policy.recovery.stages: [0.1, 0.3]: ceilings above 0 that rise and end with 1.0, "
        "like [0.1, 0.3, 1.0]",
        id="stages-not-to-the-top",
    ),
    pytest.param("policy.recovery.stages", [], None, id="no-stages"),
    pytest.param("policy.recovery.stages", 1, "policy.recovery.stages: 1: a list", id="one-stage"),
    pytest.param(
        "policy.recovery.hold_s", 500,
        "policy.recovery.hold_s: 500: at most policy.recovery.hold_max_s (480)", id="hold-too-long",
    ),
    pytest.param(
        "policy.recovery.hold_max_s", 5,
        "policy.recovery.hold_max_s: 5: at least policy.recovery.hold_s (30)",
        id="hold-maximum-too-short",
    ),
    pytest.param(
        "policy.failures.consecutive", 0, "policy.failures.consecutive: 0: a number above 0",
        id="no-failures",
    ),
    pytest.param(
        "policy.telemetry.blind_after_s", 2,
        "policy.telemetry.blind_after_s: 2: above interval_s x stale_intervals (3)",
        id="blind-before-stale",
    ),
    pytest.param(
        "policy.evidence.window_s", 0.1,
        "policy.evidence.window_s: 0.1: above policy.evidence.flush_s (0.2)",
        id="window-within-a-flush",
    ),
    pytest.param(
        "policy.evidence.flush_s", 60,
        "policy.evidence.flush_s: 60: below policy.evidence.window_s (10)",
        id="flush-beyond-the-window",
    ),
    pytest.param(
        "policy.evidence.flush_s", 0, "policy.evidence.flush_s: 0: a number of at least 0.001", id="no-flush"
    ),
    pytest.param(
        "policy.evidence.failure_ratio", 50,
        "policy.evidence.failure_ratio: 50: a number of at most 1", id="percent-of-failures",
    ),
    pytest.param(
        "policy.evidence.minimum_attempts", 0,
        "policy.evidence.minimum_attempts: 0: a number above 0", id="failures-of-nothing",
    ),
    pytest.param(
        "policy.evidence.access_log", "yes",
        'policy.evidence.access_log: "yes": true or false', id="log-yes",
    ),
    pytest.param(
        "policy.weights.correction_min", 2, "policy.weights.correction_min: 2: at most 1",
        id="correction-always-up",
    ),
    pytest.param(
        "policy.weights.correction_max", 0.5, "policy.weights.correction_max: 0.5: at least 1",
        id="correction-always-down",
    ),
    pytest.param(
        "policy.failures.static_on_5xx", 1, "policy.failures.static_on_5xx: 1: true or false",
        id="number-for-a-switch",
    ),
    pytest.param("policy", [], "policy: []: a mapping", id="policy-not-a-mapping"),
    pytest.param(
        "policy.vram.mode", "maybe",
        "policy.vram.mode: \"maybe\": one of 'above_baseline' or 'absolute'", id="unknown-mode",
    ),
    pytest.param("server.xds_listen", "x", None, id="bad-xds-listen"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "expected"), BAD_VALUES)
def test_one_wrong_value_is_one_problem_with_path_value_and_expectation(path, value, expected):
    (problem,) = problems_of(changed(path, value))
    where, found, wanted = problem.split(": ", 2)
    assert where
    assert found
    assert wanted
    if expected is not None:
        assert problem == expected


def test_two_models_may_not_answer_the_same_requests():
    second = {
        "name": "code",
        "tiers": [
            {"name": "primary", "instances": [{"name": "b", "address": "127.0.0.1:2"}]},
            {"name": "static", "answer": {"json": {}}},
        ],
    }
    (problem,) = problems_of(changed("models.1", second))
    assert problem == (
        'models[1].match.prefix: "/v1/": a domain and prefix that no other model has, '
        "or match.models to tell them apart by (see models[0].match.prefix)"
    )
    assert load_text(yaml.safe_dump(changed("models.1", second | {"match": {"prefix": "/code/"}})))
    renamed = changed("models.1", second | {"name": "chat", "match": {"prefix": "/code/"}})
    assert problems_of(renamed) == [
        'models[1].name: "chat": a name that no other model has (see models[0].name)'
    ]


def test_all_problems_are_told_at_once_in_the_order_of_the_file():
    found = problems_of(
        """
        listener: {port: 99999}
        models:
          - name: chat
            tires: []
            tiers:
              - name: primary
                instances:
                  - {name: a, address: "localhost:8001", capacity: "40"}
                  - {name: a, address: "127.0.0.1:8002"}
                  - {address: "127.0.0.1:8002"}
              - name: fallback
        policy:
          kv: {high: 0.99}
          recovery: {stages: [0.3, 0.1], hold_s: -1}
        """
    )
    assert [each.split(": ")[0] for each in found] == [
        "listener.port",
        "models[0].tiers[0].instances[0].address",
        "models[0].tiers[0].instances[0].capacity",
        "models[0].tiers[0].instances[1].name",
        "models[0].tiers[0].instances[2].address",
        "models[0].tiers[0].instances[2].name",
        "models[0].tiers[1].instances",
        "models[0].tires",
        "policy.kv.high",
        "policy.recovery.hold_s",
        "policy.recovery.stages",
    ]
