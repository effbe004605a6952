"""What Envoy would refuse, or nobody could build, is refused when the file is read; and what is not, is taken."""

from __future__ import annotations

import copy

import pytest
import yaml

from tests.fakes.envoy import validate
from tests.fakes.plans import a_plan
from tests.resources.test_validate import as_static
from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability

DOCUMENT = {
    "models": [
        {
            "name": "chat",
            "tiers": [
                {"name": "primary", "instances": [{"name": "a", "address": "10.0.0.1:80"}]},
                {"name": "static", "answer": {"json": {"choices": [{"message": {}}]}}},
            ],
        }
    ]
}
CLASSES = [{"name": "core", "match": {"header": "x-priority"}}, {"name": "rest"}]
MODEL, PRIMARY, STATIC = "models.0", "models.0.tiers.0", "models.0.tiers.1"
DURATION = ("a number of at least 0.001", "a number of at most 1e+09")
CONTROL = "text without line breaks or other control characters"
PATH = "a path of printable ASCII without spaces, others as %20"
START = "a start of paths without ?, #, . and .. between slashes"
CLASS_HEADER = "a header that means nothing else to proxies"


def changed(changes):
    """Return the document with values set by their paths; `classes.0.match.header` also makes the classes."""
    document = copy.deepcopy(DOCUMENT)
    if any(path.startswith("classes.") for path in changes):
        document["classes"] = copy.deepcopy(CLASSES)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = document
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[int(last) if isinstance(place, list) else last] = value
    return document


REFUSED = {
    "a time that is nothing": ("policy.failures.header_timeout_s", 1e-9, DURATION[0]),
    "a time that never ends": ("policy.failures.header_timeout_s", 1e12, DURATION[1]),
    "a silence that never ends": ("policy.failures.token_stall_s", 1e13, DURATION[1]),
    "an answer that takes for ever": ("policy.failures.answer_timeout_s", 1e13, DURATION[1]),
    "a class that waits for ever": ("classes.0.header_timeout_s", 1e13, DURATION[1]),
    "a class that does not wait": ("classes.0.header_timeout_s", 1e-9, DURATION[0]),
    "logs at once": ("policy.evidence.flush_s", 1e-9, DURATION[0]),
    "checks at once": ("policy.health.interval_s", 1e-9, DURATION[0]),
    "checks that never end": ("policy.health.timeout_s", 1e13, DURATION[1]),
    "more failures than Envoy counts": (
        "policy.failures.consecutive",
        2**32,
        "a number of at most 1e+09",
    ),
    "more checks than Envoy counts": (
        "policy.health.unhealthy",
        2**40,
        "a number of at most 1e+09",
    ),
    "a cookie for ever": (
        f"{PRIMARY}.affinity",
        {"cookie": "s", "cookie_ttl_s": 1e13},
        "a number of at most 1e+09",
    ),
    "a request in 10^300 s": (
        f"{MODEL}.limit.requests_per_second",
        1e-300,
        "a number of at least 0.001",
    ),
    "tokens beyond any engine": (
        f"{PRIMARY}.max_tokens.when_absent",
        10**30,
        "a number of at most 1e+09",
    ),
    "a check's path with another line": ("policy.health.path", "/a\r\nx: y", PATH),
    "a path with a space": ("classes.0.match.prefix", "/a b/", PATH),
    "a path in Greek": (f"{MODEL}.match.prefix", "/ά/", PATH),
    "a path that is followed": (f"{MODEL}.match.prefix", "/a/../b/", START),
    "a path with a query": (f"{MODEL}.match.prefix", "/v1/?a", START),
    "a name with another line": (f"{PRIMARY}.serves", "a\nx-served-model: b", CONTROL),
    "a header's value with another line": (
        "classes.0.match",
        {"header": "x-a", "value": "a\nb"},
        CONTROL,
    ),
    "a header of the connection": ("classes.0.match.header", "Connection", CLASS_HEADER),
    "a header between proxies' parts": ("classes.0.match.header", "x-fleet-patience", CLASS_HEADER),
    "the header of classes": ("classes.0.match.header", "x-request-class", CLASS_HEADER),
    "sessions by what proxies drop": (
        f"{PRIMARY}.affinity.header",
        "X-Envoy-Max-Retries",
        "a header that differs from session to session",
    ),
    "a domain with a port": (
        f"{MODEL}.match.domains",
        ["llm.example:8000"],
        "a host name without a port: the port of a request is not looked at",
    ),
    "a domain twice": (
        f"{MODEL}.match.domains",
        ["llm.example", "LLM.example"],
        "a domain that the model has once, in capitals or not (see models[0].match.domains[0])",
    ),
    "no number": (
        f"{STATIC}.answer.json",
        {"choices": [], "x": float("nan")},
        "values that JSON has: no dates, no binaries, no .nan or .inf, keys that are text",
    ),
    "a message that is text": (
        f"{STATIC}.answer.json.choices",
        [{"message": "hello"}],
        "a mapping, like {content: ...}",
    ),
    "a message that is nothing": (
        f"{STATIC}.answer.json.choices",
        [{"text": "a"}, {"message": None}],
        "a mapping, like {content: ...}",
    ),
    "a call that is text": (
        f"{STATIC}.answer.json.choices",
        [{"message": {"tool_calls": ["call"]}}],
        "a mapping: a call of a function",
    ),
}


@pytest.mark.parametrize(("path", "value", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_proxies_could_not_take_is_refused_when_the_file_is_read(path, value, expected):
    with pytest.raises(ConfigError) as caught:
        load_text(yaml.safe_dump(changed({path: value}), allow_unicode=True))
    problems = caught.value.problems
    assert [each.expected for each in problems] == [expected]
    start = path.replace(".0", "[0]").replace(".1", "[1]")
    assert problems[0].path.startswith(start.split("[0].tiers")[0].split(".limit")[0])


def test_domains_of_two_models_are_the_same_in_capitals_too():
    document = changed({f"{MODEL}.match.domains": ["llm.example"]})
    other = copy.deepcopy(document["models"][0])
    other["name"], other["match"]["domains"] = "other", ["LLM.example"]
    other["tiers"][0]["instances"][0] = {"name": "b", "address": "10.0.0.2:80"}
    document["models"].append(other)
    with pytest.raises(ConfigError, match="a domain and prefix that no other model has"):
        load_text(yaml.safe_dump(document))
    other["match"]["prefix"] = "/other/"
    config = load_text(yaml.safe_dump(document))
    assert [model.domains for model in config.topology.models] == [("llm.example",)] * 2
    assert SnapshotBuilder(config.topology, config.policy, Capability.COMPOSITE)


EDGES = {
    "least": {
        "policy.failures": {
            "consecutive": 1,
            "header_timeout_s": 0.001,
            "answer_timeout_s": 0,
            "token_stall_s": 0,
        },
        "policy.health": {
            "active": True,
            "interval_s": 0.001,
            "timeout_s": 0.001,
            "unhealthy": 1,
            "healthy": 1,
            "return_s": 0,
        },
        "policy.evidence": {"flush_s": 0.001, "load_report_s": 0.001},
        "policy.admission": {
            "burst_s": 0.001,
            "default_max_tokens": 1,
            "largest_request_tokens": 1,
        },
        "classes.0.header_timeout_s": 0.001,
        f"{MODEL}.limit": {"requests_per_second": 0.001, "tokens_per_second": 0.001},
        f"{PRIMARY}.limit": {"requests_per_second": 0.001, "concurrency": 1, "queue": 0},
        f"{PRIMARY}.max_tokens": {"scale": 1e-9, "floor": 1, "when_absent": 1},
        f"{PRIMARY}.affinity": {"cookie": "s", "cookie_ttl_s": 0, "overflow_ratio": 1},
        f"{STATIC}.answer.retry_after_s": 0,
    },
    "most": {
        "policy.failures": {
            "consecutive": 10**9,
            "header_timeout_s": 1e9,
            "answer_timeout_s": 1e9,
            "token_stall_s": 1e9,
        },
        "policy.health": {
            "active": True,
            "interval_s": 1e9,
            "timeout_s": 1e9,
            "unhealthy": 10**9,
            "healthy": 10**9,
            "return_s": 1e9,
            "path": "/" + "a~" * 500,
        },
        "policy.evidence": {"flush_s": 1e8, "window_s": 1e9, "load_report_s": 1e9},
        "policy.admission": {"burst_s": 1e9, "largest_request_tokens": 10**9},
        "classes.0.header_timeout_s": 1e9,
        f"{MODEL}.limit": {"requests_per_second": 1e9, "tokens_per_second": 1e9},
        f"{MODEL}.match": {"domains": ["[::1]", "*.example", "xn--bcher-kva.example"]},
        f"{PRIMARY}.limit": {"tokens_per_second": 1e9, "concurrency": 10**6, "queue": 10**6},
        f"{PRIMARY}.serves": "百川 🚀 100%",
        f"{PRIMARY}.max_tokens": {"floor": 10**9, "when_absent": 10**9},
        f"{PRIMARY}.affinity": {"cookie": "s", "cookie_ttl_s": 1e9, "overflow_ratio": 100},
        f"{STATIC}.answer": {"retry_after_s": 10**9, "json": {"choices": [{"text": "x" * 65_000}]}},
    },
}


@pytest.mark.envoy
@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
@pytest.mark.parametrize("changes", EDGES.values(), ids=EDGES.keys())
async def test_what_is_accepted_at_the_edges_envoy_takes(tmp_path, changes, capability):
    config = load_text(yaml.safe_dump(changed(changes), allow_unicode=True))
    snapshot = SnapshotBuilder(config.topology, config.policy, capability).build(
        a_plan(config.topology)
    )
    assert await validate(as_static(snapshot), tmp_path) == ""
