"""What a real Envoy makes of a static tier with templates."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fakes.answer import CHAT, TEXT
from tests.fakes.chain import ChainLab, chain_lab
from tests.fakes.plans import BUSY, a_model, a_static_tier, a_tier, a_topology
from tests.fakes.routing_lab import routing_lab
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.model import ClassName, RequestClass, StaticAnswer, StaticTemplate
from xds_server.core.policy import FailurePolicy
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

TEMPLATE = "x-static-template"


def says(text: str, **more) -> StaticAnswer:
    return StaticAnswer(
        body={"choices": [{"message": {"role": "assistant", "content": text}}]}, **more
    )


ANSWER = says(
    BUSY,
    templates=(
        StaticTemplate(
            name="batch",
            answer=says("later", status=429, retry_after_s=60),
            classes=(ClassName("batch"),),
        ),
        StaticTemplate(
            name="refund-de",
            answer=says("Rückgabe: Formular 7"),
            keywords=("Rückerstattung*", "refund*"),
            languages=("de",),
        ),
        StaticTemplate(name="refund", answer=says("refunds: form 7"), keywords=("refund*",)),
        StaticTemplate(name="german", answer=says("Wir sind überlastet."), languages=("de",)),
        StaticTemplate(name="long", answer=says("x" * 60_000), keywords=("tell me everything",)),
        StaticTemplate(
            name="down", answer=says("", status=503, retry_after_s=9), keywords=("status page",)
        ),
    ),
)
GERMAN = {"accept-language": "de-AT,de;q=0.9,en;q=0.5"}


def prompt(text: str, *, path: str = CHAT, stream: bool | None = None, **more) -> dict:
    body = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    if stream is not None:
        body["stream"] = stream
    return {"path": path, "body": json.dumps({"model": "chat", **body, **more}).encode()}


async def template_of(lab: ChainLab, text: str, headers: dict[str, str] | None = None) -> str:
    answer = await lab.ask(**prompt(text), headers=headers)
    assert answer.served == "static", answer
    return answer.headers[TEMPLATE]


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
async def test_templates_answer_by_keyword_class_and_language_and_the_rest_gets_the_answer(
    tmp_path, capability
):
    async with chain_lab(tmp_path, capability=capability, tiers=[[], []], answer=ANSWER) as lab:
        assert await template_of(lab, "hello") == "default"
        assert await template_of(lab, "A REFUND, please") == "refund"
        assert await template_of(lab, "two refunds", GERMAN) == "refund-de"
        assert await template_of(lab, "RÜCKERSTATTUNGEN?", GERMAN) == "refund-de"
        assert await template_of(lab, "Rückerstattung") == "default", "only in German"
        assert await template_of(lab, "hallo", GERMAN) == "german"
        assert await template_of(lab, "hello", {"accept-language": "en, de;q=0.9"}) == "default"
        assert await template_of(lab, "refund", {"x-request-class": "batch"}) == "batch"
        assert await template_of(lab, "refund", {"x-request-class": "batches"}) == "refund"
        forged = {"x-static-keywords": " refund "}
        assert await template_of(lab, "hello", forged) == "default"
        await lab.assert_all_accepted()


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_template_answers_in_every_form(tmp_path, path):
    async with chain_lab(tmp_path, tiers=[[], []], answer=ANSWER) as lab:
        plain = await lab.ask(**prompt("refund", path=path))
        streamed = await lab.ask(**prompt("refund", path=path, stream=True))
        assert plain.headers[TEMPLATE] == streamed.headers[TEMPLATE] == "refund"
        assert plain.story == streamed.story == (200, "static", "true", "failover")
        (choice,) = json.loads(plain.text)["choices"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert text == "refunds: form 7"
        *chunks, done = streamed.events
        assert done == "[DONE]"
        assert text in chunks[0]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("static_on_5xx", [True, False])
async def test_an_error_of_a_template_reaches_the_client_as_it_is(tmp_path, stream, static_on_5xx):
    failures = FailurePolicy(header_timeout_s=0.5, static_on_5xx=static_on_5xx)
    async with chain_lab(tmp_path, failures=failures, answer=ANSWER) as lab:
        lab.big.mode = lab.small.mode = "500"
        for _ in range(4):  # by retries first, then because both are ejected
            answer = await lab.ask(**prompt("the status page", stream=stream))
            assert (answer.status, answer.headers[TEMPLATE]) == (503, "down")
            assert answer.headers["retry-after"] == "9"
            assert answer.headers["content-type"] == "application/json"
            batch = await lab.ask(
                **prompt("x", stream=stream), headers={"x-request-class": "batch"}
            )
            assert (batch.status, batch.headers[TEMPLATE]) == (429, "batch")
            assert batch.headers["retry-after"] == "60"
            assert batch.served == "static"
        await lab.assert_all_accepted()


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/responses", "/v1/chat/completions/x", "/v1/"]
)
@pytest.mark.parametrize("engines", ["empty", "failing"])
async def test_another_path_gets_an_error_and_never_a_completion(tmp_path, path, engines):
    tiers = [[], []] if engines == "empty" else None
    async with chain_lab(tmp_path, tiers=tiers, answer=ANSWER) as lab:
        if engines == "failing":
            lab.big.mode = lab.small.mode = "500"
        for headers in ({}, {"accept": "text/event-stream"}, GERMAN):
            answer = await lab.ask(
                **prompt("refund", stream=True) | {"path": path}, headers=headers
            )
            assert answer.status == 503
            assert answer.headers[TEMPLATE] == "unavailable"
            assert answer.headers["retry-after"] == "5"
            assert answer.headers["content-type"] == "application/json"
            assert json.loads(answer.text)["error"]["code"] == "unavailable"
        await lab.assert_all_accepted()


async def test_a_query_or_a_slash_at_the_end_is_no_other_path(tmp_path):
    async with chain_lab(tmp_path, tiers=[[], []], answer=ANSWER) as lab:
        for path, kind in (
            (f"{CHAT}?a=/b", "chat.completion"),
            (f"{CHAT}/", "chat.completion"),
            (f"{TEXT}?x=/chat/completions", "text_completion"),
        ):
            answer = await lab.ask(**prompt("hello") | {"path": path})
            assert answer.status == 200
            assert json.loads(answer.text)["object"] == kind


async def test_a_body_of_8_mb_is_searched_and_a_long_answer_arrives(tmp_path):
    async with chain_lab(tmp_path, tiers=[[], []], answer=ANSWER) as lab:
        filler = "lorem ipsum " * 650_000
        answer = await lab.ask(**prompt(f"{filler} Tell me\nEverything"))
        assert answer.headers[TEMPLATE] == "long"
        assert "x" * 60_000 in answer.text
        streamed = await lab.ask(**prompt("tell me everything", stream=True))
        assert "x" * 60_000 in streamed.events[0]
        chunked = await lab.ask(**prompt("refund " + filler))
        assert chunked.headers[TEMPLATE] == "default", "only the newest part is looked at"
        await lab.assert_all_accepted()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\x00", b'{"messages": [{"content": "refund"'],
    ids=["no", "brace", "binary", "cut"],
)
async def test_a_broken_body_gets_the_answer(tmp_path, body):
    async with chain_lab(tmp_path, tiers=[[], []], answer=ANSWER) as lab:
        async with lab.session.post(lab.base + CHAT, data=body) as response:
            assert (response.status, response.headers[TEMPLATE]) == (200, "default")
            assert BUSY in await response.text()
        assert "script log" not in lab.envoy.log()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_net_speaks_like_the_static_tier(tmp_path, stream):
    tiers = [[ScriptedEngine(name, mode="500")] for name in ("a", "b", "c")]
    failures = FailurePolicy(header_timeout_s=0.3)
    async with chain_lab(tmp_path, tiers=tiers, failures=failures, answer=ANSWER) as lab:
        # Three tiers fail before the retries lead to the static one. What comes from there says how long it took.
        for path, kind in ((CHAT, "chat.completion"), (f"{TEXT}?a=b", "text_completion")):
            answer = await lab.ask(**prompt("hello", path=TEXT, stream=stream) | {"path": path})
            assert answer.story == (200, "static", "true", "failover")
            assert answer.headers[TEMPLATE] == "default"
            first = answer.events[0] if stream else answer.text
            assert json.loads(first)["object"].removesuffix(".chunk") == kind
        answer = await lab.ask(**prompt("hello", stream=stream) | {"path": "/v1/embeddings"})
        assert answer.story == (503, "static", "true", "failover")
        assert answer.headers[TEMPLATE] == "unavailable"
        assert answer.headers["retry-after"] == "5"
        assert json.loads(answer.text)["error"]["code"] == "unavailable"
        await lab.assert_all_accepted()


async def test_the_class_is_what_the_configuration_says_and_not_what_a_client_says(tmp_path):
    core = RequestClass(name=ClassName("core"), header="x-class", value="core")
    batch = RequestClass(name=ClassName("batch"))
    model = a_model(tiers=[a_tier("primary", "m", []), a_static_tier(ANSWER)])
    topology = replace(a_topology(model), classes=(core, batch))
    async with routing_lab(tmp_path, topology) as lab:
        for headers, expected in (
            ({"x_class": "core"}, "default"),
            ({}, "batch"),
            ({"x_class": "core", "x_request_class": "batch"}, "default"),
            ({"x_request_class": "core"}, "batch"),
        ):
            answer = await lab.ask({"model": "chat", "messages": []}, **headers)
            assert answer.headers[TEMPLATE] == expected, headers
        await lab.assert_all_accepted()
