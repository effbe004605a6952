"""Which routes a virtual host has where bodies tell its models apart, and in which order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_plan, a_topology
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.names import MODELS_ROUTE, NO_MODEL_ROUTE, UNKNOWN_MODEL_ROUTE
from xds_server.resources.proto import RouteConfiguration
from xds_server.resources.routing.model_list import list_path
from xds_server.resources.routing.model_routing import not_found_routes

PLAIN = FailurePolicy(answer_timeout_s=None)


def snapshot_of(*models, failures=PLAIN, capability=Capability.COMPOSITE, **changes):
    topology = replace(a_topology(*models), **changes)
    return SnapshotBuilder(topology, Policy(failures=failures), capability).build(a_plan(topology))


def table(*models, **settings):
    body = snapshot_of(*models, **settings).of_type(served.ROUTE).resources["llm"].body
    return RouteConfiguration.FromString(body)


def is_strict(route):
    return any(each.name == "x-no-fallback" for each in route.match.headers)


def is_unread(route):
    return any(each.invert for each in route.match.dynamic_metadata)


def order(*models, **settings):
    """Return the routes' names, those of the unread in brackets; a strict one is left out."""
    (host,) = table(*models, **settings).virtual_hosts
    return [
        f"({route.name})" if is_unread(route) else route.name
        for route in host.routes
        if not is_strict(route)
    ]


def routes_of(name, *models, **settings):
    """Return a model's routes in order, without strict ones and those of the unread."""
    (host,) = table(*models, **settings).virtual_hosts
    found = [each for each in host.routes if each.name == name]
    return [each for each in found if not is_strict(each) and not is_unread(each)]


def named(name, *names, **changes):
    return replace(a_model(name), names=names or (name,), **changes)


NOT_FOUND = [NO_MODEL_ROUTE, NO_MODEL_ROUTE, UNKNOWN_MODEL_ROUTE]
ORDERS = {
    "one model that takes all": ([a_model("a")], ["a"]),
    "one model with names": ([named("a")], ["a", "(a)", *NOT_FOUND]),
    "two with names": ([named("b"), named("a")], ["b", "a", "(b)", *NOT_FOUND]),
    "the default comes last": ([a_model("a"), named("b")], ["b", "a"]),
    "a default with names": ([named("a", is_default=True), named("b")], ["b", "a"]),
    "longer prefixes first": (
        [a_model("a", prefix="/"), named("b"), named("c", prefix="/v1/c/")],
        ["c", "b", "a"],
    ),
    "a default elsewhere takes nothing": (
        [a_model("a", prefix="/a/"), named("b"), named("c", prefix="/v1/c/")],
        ["c", "b", "a", "(c)", "(b)", *NOT_FOUND, *NOT_FOUND],
    ),
}


@pytest.mark.parametrize(("models", "expected"), ORDERS.values(), ids=ORDERS.keys())
def test_the_order_of_routes(models, expected):
    assert order(*models) == expected


def test_a_model_with_names_is_matched_by_any_of_them():
    models = named("a", "x", "y"), named("b")
    (first,), (second,) = (routes_of(name, *models) for name in "ab")
    (condition,) = first.match.dynamic_metadata
    assert [each.string_match.exact for each in condition.value.or_match.value_matchers] == [
        "x",
        "y",
    ]
    (condition,) = second.match.dynamic_metadata
    assert condition.value.string_match.exact == "b"
    assert (condition.filter, [each.key for each in condition.path]) == ("llm", ["model"])


def test_streams_and_names_are_conditions_together():
    failures = FailurePolicy(answer_timeout_s=60.0)
    streams, plain = routes_of("a", named("a"), failures=failures)
    assert [each.path[0].key for each in streams.match.dynamic_metadata] == ["stream", "model"]
    assert [each.path[0].key for each in plain.match.dynamic_metadata] == ["model"]


@pytest.mark.parametrize(
    ("models", "reads"),
    [
        ([a_model("a")], False),
        ([named("a", is_default=True)], False),
        ([named("a")], True),
        ([a_model("a"), named("b")], True),
    ],
    ids=["no names", "a default alone", "names", "names and a default"],
)
def test_bodies_are_read_only_where_a_route_depends_on_it(models, reads):
    listener = snapshot_of(*models).of_type(served.LISTENER).resources["llm"].body
    assert (b"envoy.filters.http.lua" in listener) is reads


GRPC = {
    "alone": ([named("a")], ["a"]),
    "apart by prefix": ([named("a"), named("b", prefix="/b/")], ["a", "b"]),
    "together": ([named("a"), named("b")], []),
    "with a default": ([named("a"), a_model("b")], ["b"]),
}


@pytest.mark.parametrize(("models", "expected"), GRPC.values(), ids=GRPC.keys())
def test_clients_without_a_proxy_reach_what_needs_no_look_at_bodies(models, expected):
    (host,) = table(*models, capability=Capability.GRPC, lists_models=True).virtual_hosts
    assert [route.name for route in host.routes] == expected
    assert not any(route.match.dynamic_metadata for route in host.routes)
    assert not_found_routes(models, Capability.GRPC) == []


PATHS = {
    "/v1/": "/v1/models",
    "/": "/v1/models",
    "/code/": "/code/v1/models",
    "/code": "/code/v1/models",
    "/code/v1/": "/code/v1/models",
    "/v1/chat/completions": "/v1/models",
    "/a/v1/b/v1/": "/a/v1/models",
}


@pytest.mark.parametrize(("prefix", "path"), PATHS.items(), ids=PATHS.keys())
def test_the_list_is_where_the_base_url_of_clients_ends(prefix, path):
    assert list_path(prefix) == path


@given(st.from_regex(r"/([a-z0-9]{0,3}/?){0,4}", fullmatch=True))
def test_every_prefix_has_a_list(prefix):
    path = list_path(prefix)
    assert path.startswith("/")
    assert path.endswith("/v1/models")
    assert "//" not in path or "//" in prefix


def listed(*models, **settings):
    (host,) = table(*models, lists_models=True, **settings).virtual_hosts
    return [
        (route.match.path or route.match.prefix, route.direct_response)
        for route in host.routes
        if route.name == MODELS_ROUTE
    ]


def test_the_list_has_every_name_once_and_each_has_a_page():
    routes = listed(named("a", "x", "org/y z"), named("b", "x", prefix="/v1/b/"), a_model("c"))
    assert [path for path, _ in routes] == [
        "/v1/models",
        "/v1/models/c",
        "/v1/models/org/y z",
        "/v1/models/org/y%20z",
        "/v1/models/org%2Fy%20z",
        "/v1/models/x",
        "/v1/models/",
    ]
    (_, whole), *pages, (_, missing) = routes
    document = json.loads(whole.body.inline_string)
    assert document == {
        "object": "list",
        "data": [
            {"id": name, "object": "model", "created": 0, "owned_by": "gpu-xds"}
            for name in ("c", "org/y z", "x")
        ],
    }
    assert json.loads(pages[0][1].body.inline_string) == document["data"][0]
    assert missing.status == 404


def test_the_list_comes_before_the_models_and_no_completion_waits_for_an_expression():
    (host,) = table(a_model("c", prefix="/"), lists_models=True).virtual_hosts
    names = [route.name for route in host.routes]
    assert names.index(MODELS_ROUTE) < names.index("c")
    for route in host.routes:
        if route.name == MODELS_ROUTE:
            first, looks = route.match.headers
            assert (first.name, first.string_match.exact) == (":method", "POST")
            assert first.invert_match
            assert (looks.name, looks.string_match.safe_regex.regex) == (":method", "GET|HEAD")


def test_only_a_long_list_raises_the_limit_of_answers():
    assert not table(a_model(), lists_models=True).HasField("max_direct_response_body_size_bytes")
    many = named("a", *(f"model-{number}" for number in range(200)))
    config = table(many, lists_models=True)
    longest = max(
        len(route.direct_response.body.inline_string) for route in config.virtual_hosts[0].routes
    )
    assert config.max_direct_response_body_size_bytes.value == longest > 4096


def test_what_is_not_configured_adds_no_route():
    (host,) = table(a_model("a")).virtual_hosts
    assert {route.name for route in host.routes} == {"a"}
    assert not any(route.metadata.filter_metadata for route in host.routes)
