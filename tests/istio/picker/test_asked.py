"""Which model a request is for, and in which class it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.plans import a_model, a_topology
from xds_server.core.model import ClassName, ModelName, RequestClass
from xds_server.istio.picker.asked import Asked, chosen, is_completion


def models(*about: dict) -> tuple:
    return tuple(
        replace(
            a_model(
                each["name"], domains=each.get("domains", ("*",)), prefix=each.get("prefix", "/v1/")
            ),
            names=tuple(each.get("names", ())),
            is_default=each.get("is_default", False),
        )
        for each in about
    )


def found(topology, *, path="/v1/x", authority="llm", served=()) -> list[str]:
    asked = Asked(topology, [ModelName(each) for each in served])
    return [each.name for each in asked.candidates(authority=authority, path=path)]


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("a.example.com", ["exact"]),
        ("A.Example.Com:8443", ["exact"]),
        ("b.example.com", ["suffix"]),
        ("x.b.example.com", ["longer"]),
        ("llm.internal", ["prefix"]),
        ("other", ["any"]),
        ("", ["any"]),
        ("[::1]:80", ["any"]),
    ],
)
def test_domains_are_looked_up_as_proxies_do(authority, expected):
    topology = a_topology(
        *models(
            {"name": "any"},
            {"name": "prefix", "domains": ("llm.*",)},
            {"name": "suffix", "domains": ("*.example.com",)},
            {"name": "longer", "domains": ("*.b.example.com",)},
            {"name": "exact", "domains": ("a.example.com",)},
        )
    )
    assert found(topology, authority=authority) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", ["gpt", "coder", "rest"]),
        ("/v1/batch/x", ["batch"]),
        ("/v2/x", []),
        ("/", []),
    ],
)
def test_the_longest_prefix_comes_first_and_who_takes_the_rest_last(path, expected):
    topology = a_topology(
        *models(
            {"name": "rest"},
            {"name": "gpt", "names": ("gpt-4o",)},
            {"name": "coder", "names": ("coder",)},
            {"name": "batch", "prefix": "/v1/batch/"},
        )
    )
    assert found(topology, path=path) == expected


def test_only_the_models_that_are_served_are_looked_at():
    topology = a_topology(*models({"name": "a", "names": ("a",)}, {"name": "b"}))
    assert found(topology, served=["b"]) == ["b"]
    assert found(topology, served=["a"]) == ["a"]


@pytest.mark.parametrize(
    ("named", "expected"),
    [("gpt-4o", "gpt"), ("four", "gpt"), ("coder", "coder"), ("other", "rest"), (None, "rest")],
)
def test_the_body_says_which(named, expected):
    candidates = models(
        {"name": "gpt", "names": ("gpt-4o", "four")},
        {"name": "coder", "names": ("coder",)},
        {"name": "rest", "names": ("rest",), "is_default": True},
    )
    model = chosen(candidates, named)
    assert model is not None
    assert model.name == expected


def test_where_nobody_takes_the_rest_an_unknown_name_is_nobodys():
    assert chosen(models({"name": "gpt", "names": ("gpt-4o",)}), "other") is None
    assert chosen(models({"name": "gpt", "names": ("gpt-4o",)}), None) is None


CLASSES = (
    RequestClass(name=ClassName("rest")),
    RequestClass(name=ClassName("core"), header="x-priority", value="high"),
    RequestClass(name=ClassName("any"), header="x-batch"),
    RequestClass(name=ClassName("batch"), prefix="/v1/batch/"),
)


@pytest.mark.parametrize(
    ("headers", "path", "expected"),
    [
        ({"x-priority": "high"}, "/v1/x", "core"),
        ({"x-priority": "low"}, "/v1/x", "rest"),
        ({"x-batch": ""}, "/v1/x", "any"),
        ({}, "/v1/batch/x", "batch"),
        ({}, "/v1/x", "rest"),
    ],
)
def test_the_first_class_that_fits_is_the_requests(headers, path, expected):
    asked = Asked(replace(a_topology(), classes=CLASSES), ())
    assert asked.request_class(headers=headers, path=path) == expected


def test_without_classes_there_is_none():
    assert Asked(a_topology(), ()).request_class(headers={}, path="/v1/x") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions/", True),
        ("/v1/chat/completions?x=/y", True),
        ("/v1/models", False),
        ("/v1/embeddings", False),
    ],
)
def test_completions_are_known_by_their_paths(path, expected):
    assert is_completion(path) is expected
