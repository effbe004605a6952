"""The answers of a static tier in the configuration file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from xds_server.config.answer_checks import ANSWER_MOST_BYTES, KEYWORDS_MOST
from xds_server.config.config import Config
from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError
from xds_server.core.model import StaticAnswer, StaticTemplate

BUSY = {"choices": [{"message": {"content": "busy"}}]}
ANSWER = "models[0].tiers[1].answer"
FIRST = f"{ANSWER}.templates[0]"


def load(answer: dict[str, Any], **more: Any) -> Config:
    primary = {"name": "primary", "instances": [{"name": "a", "address": "127.0.0.1:1"}]}
    tiers = [primary, {"name": "static", "answer": answer}]
    return load_text(yaml.safe_dump({"models": [{"name": "chat", "tiers": tiers}], **more}))


def template(**more: Any) -> dict[str, Any]:
    return {"name": "t", "when": {"keywords": ["refund"]}, "json": BUSY, **more}


def problems(*templates: dict[str, Any], **answer: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load({"json": BUSY, "templates": list(templates), **answer})
    return [str(each) for each in caught.value.problems]


def test_templates_are_read_in_their_order():
    classes = [{"name": "core", "match": {"header": "x-core"}}, {"name": "rest"}]
    when = {"keywords": ["refund*"], "classes": ["rest"], "languages": ["de", "pt-BR"]}
    german = template(name="german", when=when, status=503, retry_after_s=7)
    config = load({"json": BUSY, "templates": [german, template()]}, classes=classes)
    answer = config.topology.models[0].tiers[1].answer
    assert answer == StaticAnswer(
        body=BUSY,
        templates=(
            StaticTemplate(
                name="german",
                answer=StaticAnswer(status=503, body=BUSY, retry_after_s=7),
                keywords=("refund*",),
                classes=("rest",),
                languages=("de", "pt-BR"),
            ),
            StaticTemplate(name="t", answer=StaticAnswer(body=BUSY), keywords=("refund",)),
        ),
    )
    assert config.doubts == ()


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        pytest.param(
            {"when": {}},
            f"{FIRST}.when: {{}}: expected at least one of keywords, classes, languages: "
            "the answer itself is for all other requests",
            id="no-condition",
        ),
        pytest.param({"when": {"keywords": []}}, f"{FIRST}.when: ", id="empty-condition"),
        pytest.param(
            {"when": {"classes": ["core"]}},
            f'{FIRST}.when.classes[0]: "core": expected a class: there are none (key classes)',
            id="unknown-class",
        ),
        pytest.param(
            {"when": {"languages": ["German, please"]}},
            f'{FIRST}.when.languages[0]: "German, please": expected a language as in '
            "Accept-Language, like de or pt-BR",
            id="language",
        ),
        pytest.param(
            {"when": {"keywords": ["a*b"]}},
            f'{FIRST}.when.keywords[0]: "a*b": expected a word or a phrase, with a * at the end',
            id="star",
        ),
        pytest.param({"when": {"keywords": [" "]}}, "expected a word or a phrase", id="blank"),
        pytest.param({"when": {"keywords": ["*"]}}, "expected a word or a phrase", id="only-star"),
        pytest.param({"when": {"keywords": ["a\nb"]}}, "expected a word or a phrase", id="control"),
        pytest.param(
            {"when": {"keywords": ["a" * 65]}}, "expected at most 64 characters", id="long-keyword"
        ),
        pytest.param(
            {"when": {"keywords": [f"w{each}" for each in range(KEYWORDS_MOST + 1)]}},
            f"{ANSWER}.templates: 65 keywords: expected at most 64 keywords, all templates together",
            id="many-keywords",
        ),
        pytest.param(
            {"name": "default"},
            f'{FIRST}.name: "default": expected another name: default and unavailable mean',
            id="reserved",
        ),
        pytest.param({"name": "a b"}, f'{FIRST}.name: "a b": expected a name', id="name"),
        pytest.param(
            {"json": {"x": "ü" * 32_768}},
            f"{FIRST}.json: 65544 bytes: expected at most 65536 bytes as JSON",
            id="long",
        ),
        pytest.param(
            {"status": 204},
            f"{FIRST}.status: 204: expected a status that comes with a body: 200, or 400-599",
            id="no-body",
        ),
        pytest.param({"status": 302}, f"{FIRST}.status: 302: expected a status", id="redirect"),
        pytest.param(
            {"templates": []}, f"{FIRST}.templates: []: expected no such key", id="nested"
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(bad, expected):
    (problem,) = problems(template(**bad))
    assert problem.startswith(expected) or expected in problem


def test_two_templates_of_one_name_are_refused():
    assert problems(template(), template()) == [
        (
            f'{ANSWER}.templates[1].name: "t": expected a name that no other template of this answer '
            f"has (see {FIRST})"
        )
    ]


def test_the_answer_itself_has_a_limit_too():
    longest = "x" * (ANSWER_MOST_BYTES - len('{"error":{"message":""}}'))
    load({"json": {"error": {"message": longest}}})
    assert problems(json={"error": {"message": longest + "x"}}) == [
        f"{ANSWER}.json: 65537 bytes: expected at most 65536 bytes as JSON"
    ]


def test_what_json_does_not_have_is_refused():
    text = "models: [{name: m, tiers: [{name: p, instances: [{name: a, address: '10.0.0.1:1'}]}, "
    text += "{name: s, answer: {json: {since: 2026-01-01}}}]}]"
    with pytest.raises(ConfigError, match="expected values that JSON has"):
        load_text(text)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({"json": BUSY}, [], id="chat"),
        pytest.param({"json": {"choices": [{"text": "busy"}]}}, [], id="text"),
        pytest.param({"json": {"error": {"message": "busy"}}}, [], id="error"),
        pytest.param(
            {"json": {"foo": "bar"}},
            [(f'{ANSWER}.json: {{"foo": "bar"}}: expected choices, or an error: OpenAI\'s clients '
             "can read nothing else")],
            id="neither",
        ),
        pytest.param({"json": {"choices": []}}, [f"{ANSWER}.json"], id="no-choice"),
        pytest.param({"json": {"error": "busy"}}, [f"{ANSWER}.json"], id="error-as-text"),
        pytest.param(
            {"json": BUSY, "status": 503}, [f"{ANSWER}.retry_after_s: (missing)"], id="no-time"
        ),
        pytest.param({"json": BUSY, "status": 503, "retry_after_s": 0}, [], id="at-once"),
        pytest.param(
            {"json": BUSY, "templates": [template(json={}, status=429)]},
            [f"{FIRST}.json", f"{FIRST}.retry_after_s"],
            id="in-a-template",
        ),
    ],
)  # fmt: skip
def test_what_works_and_is_hardly_meant_is_a_doubt(answer, expected):
    doubts = [str(each) for each in load(answer).doubts]
    assert len(doubts) == len(expected)
    assert all(doubt.startswith(start) for doubt, start in zip(doubts, expected, strict=True))
