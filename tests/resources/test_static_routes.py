"""The route table of a static tier."""

from __future__ import annotations

import json
import re

import pytest

from tests.fakes.plans import a_model, a_static_tier, a_tier
from xds_server.core.model import ClassName, StaticAnswer, StaticTemplate
from xds_server.resources.static.static_conditions import BEST_LANGUAGE, conditions
from xds_server.resources.static.static_routes import author_routes
from xds_server.resources.static.static_tier import static_listener

BUSY = {"choices": [{"message": {"content": "busy"}}]}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param("de", True, id="alone"),
        pytest.param("DE-at", True, id="region"),
        pytest.param("de-DE,de;q=0.9,en;q=0.8", True, id="browser"),
        pytest.param("pt-BR, en", True, id="tag-with-region"),
        pytest.param("de;q=1.0", True, id="quality-1"),
        pytest.param(" de ; q=1 , en", True, id="spaces"),
        pytest.param("en;q=0.5, de", True, id="better-than-the-first"),
        pytest.param("en;q=0.5,fr;q=0.7,de;q=1", True, id="best-at-last"),
        pytest.param("de;q=0.9", True, id="less-than-1-alone"),
        pytest.param("de;q=0.9,en;q=0.8", True, id="all-less-than-1"),
        pytest.param("en", False, id="another"),
        pytest.param("", False, id="empty"),
        pytest.param("*", False, id="anything"),
        pytest.param("en,de", False, id="second"),
        pytest.param("en, de;q=0.9", False, id="second-with-quality"),
        pytest.param("en;q=0.9,de;q=0.8", False, id="second-of-less-than-1"),
        pytest.param("de;q=0.5,en", False, id="first-and-not-best"),
        pytest.param("pt", False, id="without-the-region"),
        pytest.param("pt-PT", False, id="another-region"),
        pytest.param("den", False, id="longer-tag"),
        pytest.param("x-de", False, id="end-of-a-tag"),
    ],
)
def test_the_language_that_a_client_likes_most_decides(header, expected):
    value = re.sub(BEST_LANGUAGE, r"\1", header)
    assert likes(["de", "pt-BR"], value) is expected


def likes(languages, value: str) -> bool:
    """What Envoy's matchers make of the header as rewritten."""
    template = StaticTemplate(name="t", answer=StaticAnswer(), languages=tuple(languages))
    (condition,) = conditions(template)["dynamic_metadata"]
    texts = [each.string_match for each in condition.value.or_match.value_matchers]
    assert all(each.ignore_case for each in texts)
    return any(
        value.lower() == each.exact.lower()
        if each.exact
        else value.lower().startswith(each.prefix.lower())
        for each in texts
    )


def routes(*templates: StaticTemplate, status: int = 200, retry_after_s: int | None = None):
    answer = StaticAnswer(
        body=BUSY, status=status, retry_after_s=retry_after_s, templates=templates
    )
    return author_routes(answer, "static")


def headers_of(route) -> dict[str, str]:
    return {each.header.key: each.header.value for each in route.response_headers_to_add}


def names(found) -> list[str]:
    return list(dict.fromkeys(headers_of(each)["x-static-template"] for each in found))


def test_templates_come_in_their_order_then_the_answer_then_the_error():
    one = StaticTemplate(name="one", answer=StaticAnswer(body=BUSY), languages=("de",))
    two = StaticTemplate(name="two", answer=StaticAnswer(body=BUSY), keywords=("x",))
    assert names(routes(two, one)) == ["two", "one", "default", "unavailable"]
    assert names(routes()) == ["default", "unavailable"]


def test_all_kinds_of_conditions_must_hold_on_every_route_of_a_template():
    template = StaticTemplate(
        name="t",
        answer=StaticAnswer(body=BUSY),
        keywords=("x", "y"),
        classes=(ClassName("a.b"), ClassName("c")),
        languages=("de",),
    )
    ours = [each for each in routes(template) if headers_of(each)["x-static-template"] == "t"]
    assert len(ours) == 8, "chat and text, each streamed by body, not, by Accept, and by nothing"
    for route in ours:
        matched = {each.name: each.string_match for each in route.match.headers}
        assert matched["x-static-keywords"].contains == " t "
        keys = [each.path[0].key for each in route.match.dynamic_metadata]
        assert keys[:2] == ["class", "language"]
        classes = route.match.dynamic_metadata[0].value.or_match.value_matchers
        assert [each.string_match.exact for each in classes] == ["a.b", "c"]


@pytest.mark.parametrize(("given", "expected"), [(None, "5"), (0, "0"), (30, "30")])
def test_another_path_gets_an_error_with_a_time_to_come_back(given, expected):
    *_, last = routes(retry_after_s=given)
    assert last.direct_response.status == 503
    assert last.match.prefix == "/"
    assert headers_of(last)["retry-after"] == expected
    error = json.loads(last.direct_response.body.inline_string)["error"]
    assert (error["type"], error["code"]) == ("server_error", "unavailable")


def test_an_error_is_never_streamed():
    error = StaticTemplate(name="e", answer=StaticAnswer(body=BUSY, status=503), keywords=("x",))
    ours = [each for each in routes(error) if headers_of(each)["x-static-template"] == "e"]
    assert {headers_of(each)["content-type"] for each in ours} == {"application/json"}
    assert len(ours) == 2


def listener(answer: StaticAnswer, name: str = "chat"):
    model = a_model(name, tiers=[a_tier("primary", "m", [1]), a_static_tier(answer)])
    return static_listener(model, model.tiers[1])


def test_lua_is_there_only_for_keywords_and_a_change_of_any_part_changes_the_listener():
    plain = StaticTemplate(name="t", answer=StaticAnswer(body=BUSY), languages=("de",))
    searched = StaticTemplate(name="t", answer=StaticAnswer(body=BUSY), keywords=("x",))
    other = StaticTemplate(name="t", answer=StaticAnswer(body=BUSY, status=429), keywords=("x",))
    bodies = [
        listener(StaticAnswer(body=BUSY, templates=templates)).body
        for templates in ((), (plain,), (searched,), (other,), (plain, searched), (searched, plain))
    ]
    assert len(set(bodies)) == len(bodies)
    has_keywords, has_headers = (
        [name in each for each in bodies] for name in (b"local TEMPLATES", b"header_to_metadata")
    )
    assert has_keywords == [False, False, True, True, True, True]
    assert has_headers == [False, True, False, False, True, True]
