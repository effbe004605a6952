"""Which requests belong to a model and to a class: what the file may say, and what it means."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError
from xds_server.core.model import RequestClass, WhenCritical

TENANTS = {"header": "x-tenant", "others": {"requests_per_second": 5}}
"""Quotas are shares of limits."""


def a_model(name: str, **match: Any) -> dict[str, Any]:
    port = 1 + sum(name.encode())
    primary = {"name": "primary", "instances": [{"name": name, "address": f"127.0.0.1:{port}"}]}
    static = {"name": "static", "answer": {"json": {}}}
    return {"name": name, "match": match, "tiers": [primary, static]}


def loaded(**document: Any) -> Any:
    whole = {"models": [a_model("chat")], "tenants": TENANTS} | document
    return load_text(yaml.safe_dump(whole)).topology


def problems_of(**document: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(**document)
    return [f"{each.path}: {each.value}: {each.expected}" for each in caught.value.problems]


def test_a_model_has_names_and_may_take_what_names_no_model():
    chat, other = loaded(
        models=[a_model("chat", models=["big", "gpt-4o"], default=True), a_model("o", models=["o"])]
    ).models
    assert (chat.names, chat.is_default, chat.takes_any) == (("big", "gpt-4o"), True, True)
    assert (other.names, other.is_default, other.takes_any) == (("o",), False, False)
    assert chat.public_names == ("big", "gpt-4o")


def test_without_names_a_model_is_called_as_it_is_and_takes_all():
    (chat,) = loaded().models
    assert (chat.public_names, chat.takes_any) == (("chat",), True)


def test_the_list_of_models_can_be_left_to_engines():
    assert loaded().lists_models
    assert not loaded(listener={"lists_models": False}).lists_models


APART = "a domain and prefix that no other model has, or match.models to tell them apart by"
TWICE = "a name that no other model of this domain and prefix has"
MATCH_PROBLEMS = {
    "two defaults": (
        [a_model("a", models=["x"], default=True), a_model("b")],
        f'models[1].match.prefix: "/v1/": {APART} (see models[0].match.prefix)',
    ),
    "one name, two models": (
        [a_model("a", models=["x", "y"]), a_model("b", models=["z", "y"])],
        f'models[1].match.models[1]: "y": {TWICE} (see models[0].match.models[1])',
    ),
    "one name twice": (
        [a_model("a", models=["x", "x"], domains=["a.example", "b.example"])],
        f'models[0].match.models[1]: "x": {TWICE} (see models[0].match.models[0])',
    ),
    "no names": (
        [a_model("a", models=[])],
        "models[0].match.models: []: at least one entry",
    ),
    "no text": (
        [a_model("a", models=[""])],
        'models[0].match.models[0]: "": text that is not empty',
    ),
}


@pytest.mark.parametrize(("models", "expected"), MATCH_PROBLEMS.values(), ids=MATCH_PROBLEMS.keys())
def test_models_that_bodies_cannot_tell_apart_are_refused(models, expected):
    assert problems_of(models=models) == [expected]


def test_the_same_name_on_another_domain_or_prefix_is_another_models():
    models = [
        a_model("a", models=["x"]),
        a_model("b", models=["x"], prefix="/b/"),
        a_model("c", models=["x"], domains=["c.example"]),
    ]
    assert [model.names for model in loaded(models=models).models] == [("x",)] * 3


CLASSES: list[dict[str, Any]] = [
    {"name": "core", "match": {"header": "X-Class", "value": "core"}, "quota_ratio": 0.6},
    {"name": "elastic", "quota_ratio": 0.25},
    {"name": "best_effort", "match": {"prefix": "/v1/batch/"}, "quota_ratio": 0.15},
]


def test_from_the_most_to_the_least_critical_classes_wait_longer_and_try_more():
    classes = loaded(classes=CLASSES).classes
    assert classes == (
        RequestClass(
            name="core", header="x-class", value="core", header_timeout_s=2.0, quota_ratio=0.6
        ),
        RequestClass(name="elastic", header_timeout_s=5.0, retries=1, quota_ratio=0.25),
        RequestClass(
            name="best_effort",
            prefix="/v1/batch/",
            header_timeout_s=15.0,
            retries=3,
            quota_ratio=0.15,
        ),
    )
    assert [each.is_rest for each in classes] == [False, True, False]


def test_what_a_class_says_itself_counts():
    settings = {
        "header_timeout_s": 1,
        "retries": 2,
        "demand_ratio": 0.5,
        "when_critical": "reject",
    }
    (only,) = loaded(classes=[{"name": "all", **settings}]).classes
    assert (only.header_timeout_s, only.retries, only.demand_ratio) == (1.0, 2, 0.5)
    assert only.when_critical is WhenCritical.REJECT


def test_without_classes_there_are_none():
    assert loaded().classes == ()


def class_change(index: int, **values: Any) -> list[dict[str, Any]]:
    rows = copy.deepcopy(CLASSES)
    rows[index] |= values
    return [{key: value for key, value in row.items() if value is not ...} for row in rows]


CLASS_PROBLEMS = {
    "a name twice": (
        class_change(1, name="core"),
        'classes[1].name: "core": a name that no other class has (see classes[0])',
    ),
    "a name of a tier": (
        class_change(1, name="static"),
        'classes[1].name: "static": a name that no tier has (see models[0].tiers[1])',
    ),
    "no rest": (
        class_change(1, match={"header": "x-b"}),
        (
            'classes: ["core", "elastic", "best_effort"]: '
            "exactly one class without a match, for the rest"
        ),
    ),
    "two rests": (
        class_change(2, match=...),
        "classes[2].match: (missing): a header or a prefix: the rest goes to classes[1] already",
    ),
    "an empty match": (
        class_change(0, match={}),
        (
            "classes[0].match: {}: "
            "a header or a prefix; no match at all for the class that takes the rest"
        ),
    ),
    "a value of no header": (
        class_change(0, match={"value": "core"}),
        "classes[0].match.header: (missing): the header that has the value",
    ),
    "a match twice": (
        class_change(2, match={"header": "x-class", "value": "core"}),
        (
            'classes[2].match: {"header": "x-class", "value": "core"}: '
            "a match that no other class has (see classes[0].match)"
        ),
    ),
    "a header of Envoy": (
        class_change(0, match={"header": "X-Envoy-Retry-On"}),
        (
            'classes[0].match.header: "X-Envoy-Retry-On": '
            "a header that means nothing else to proxies"
        ),
    ),
    "a header of ours": (
        class_change(0, match={"header": "X-No-Fallback"}),
        'classes[0].match.header: "X-No-Fallback": a header that means nothing else to proxies',
    ),
    "no header at all": (
        class_change(0, match={"header": ":path"}),
        'classes[0].match.header: ":path": the name of a header',
    ),
    "no path": (
        class_change(2, match={"prefix": "v1"}),
        'classes[2].match.prefix: "v1": a path that starts with /',
    ),
    "quotas above all": (
        class_change(2, quota_ratio=0.25),
        "classes[2].quota_ratio: 0.25: at most 0.15: the classes' shares would be 1.1",
    ),
    "demand above all": (
        [row | {"demand_ratio": 0.5} for row in CLASSES],
        "classes[2].demand_ratio: 0.5: at most 0: the classes' shares would be 1.5",
    ),
    "no quota": (class_change(0, quota_ratio=0), "classes[0].quota_ratio: 0: a number above 0"),
    "no time": (
        class_change(0, header_timeout_s=0),
        "classes[0].header_timeout_s: 0: a number of at least 0.001",
    ),
    "too many retries": (
        class_change(0, retries=4),
        "classes[0].retries: 4: a number of at most 3",
    ),
    "nothing known": (
        class_change(0, when_critical="drop"),
        "classes[0].when_critical: \"drop\": one of 'serve', 'static' or 'reject'",
    ),
    "not classes": ("core", 'classes: "core": a list'),
}


@pytest.mark.parametrize(
    ("classes", "expected"), CLASS_PROBLEMS.values(), ids=CLASS_PROBLEMS.keys()
)
def test_classes_that_contradict_each_other_are_refused(classes, expected):
    assert problems_of(classes=classes) == [expected]


DOUBTS = {
    "under no model": ("/batch/", ['classes[2].match.prefix: "/batch/"']),
    "under a model": ("/v1/batch/", []),
    "around a model": ("/", []),
    "under one of two": ("/code/x/", []),
}


@pytest.mark.parametrize(("prefix", "expected"), DOUBTS.values(), ids=DOUBTS.keys())
def test_a_class_that_no_request_can_belong_to_is_hardly_meant(prefix, expected):
    whole = {
        "models": [a_model("chat"), a_model("code", prefix="/code/")],
        "tenants": TENANTS,
        "classes": class_change(2, match={"prefix": prefix}),
    }
    assert doubted(whole) == expected


def doubted(whole):
    doubts = [f"{each.path}: {each.value}" for each in load_text(yaml.safe_dump(whole)).doubts]
    return [each for each in doubts if each.startswith("classes")]


def test_without_classes_there_is_nothing_to_doubt():
    model = a_model("chat")
    del model["match"]
    assert doubted({"models": [model], "classes": [{"name": "all"}]}) == []
