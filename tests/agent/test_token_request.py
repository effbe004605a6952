"""The one-token request against engines that answer in every way they do."""

from __future__ import annotations

import json
import time

import pytest

from sidecar_agent.engine.token_request import TokenRequest, TokenTarget, token_session
from sidecar_agent.engine.token_watch import Reply
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine

MODELS = {"/v1/models": json.dumps({"data": [{"id": "tiny"}]})}


async def asked(engine, *, times=1, deadline_s=2.0, model="tiny", key_file=None, path=""):
    async with token_session() as http:
        request = TokenRequest(
            TokenTarget(
                url=f"http://127.0.0.1:{engine.port}{path}",
                deadline_s=deadline_s,
                model=model,
                key_file=key_file,
            ),
            http,
            clock=time.monotonic,
        )
        for _ in range(times):
            answer = await request.ask()
        return answer


@pytest.mark.parametrize(
    ("mode", "reply", "detail"),
    [
        ("ok", Reply.GIVEN, ""),
        ("429", Reply.REJECTED, "status 429"),
        ("503", Reply.REJECTED, "status 503"),
        ("500", Reply.BROKEN, "status 500"),
        ("502", Reply.BROKEN, "status 502"),
        ("400", Reply.UNUSABLE, "status 400"),
        ("401", Reply.UNUSABLE, "status 401"),
        ("404", Reply.UNUSABLE, "status 404"),
        ("reset", Reply.BROKEN, "the answer was cut (ServerDisconnectedError)"),
    ],
)
async def test_what_an_engine_answers(mode, reply, detail):
    async with scripted_engine(ScriptedEngine("tiny", mode=mode)) as engine:
        answer = await asked(engine)
    assert (answer.reply, answer.detail) == (reply, detail)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        pytest.param("nonsense", "an answer that is not JSON", id="no JSON"),
        pytest.param("[" * 100_000, "an answer that is not JSON", id="nested without end"),
        pytest.param("[]", "an error inside a 200", id="no object"),
        pytest.param(
            '{"error": {"code": 500}}', "an error inside a 200", id="vLLM lost its worker"
        ),
        pytest.param('{"choices": []}', "a 200 without a choice", id="no choice"),
        pytest.param(
            '{"choices": [{"text": "", "finish_reason": "abort"}]}',
            "finish_reason abort",
            id="vLLM shuts down",
        ),
    ],
)
async def test_a_200_without_a_token_is_a_failure(body, detail):
    async with scripted_engine(ScriptedEngine("tiny", body=body)) as engine:
        answer = await asked(engine)
    assert (answer.reply, answer.detail) == (Reply.BROKEN, detail)


async def test_an_empty_text_is_a_token_because_the_model_may_end_at_once():
    body = '{"choices": [{"text": "", "finish_reason": "stop"}]}'
    async with scripted_engine(ScriptedEngine("tiny", body=body)) as engine:
        assert (await asked(engine)).reply is Reply.GIVEN


async def test_an_answer_that_arrives_in_pieces_is_read_to_its_end():
    body = json.dumps({"choices": [{"text": "a"}], "usage": "x" * 100})
    async with scripted_engine(ScriptedEngine("tiny", body=body, in_pieces=True)) as engine:
        answer = await asked(engine)
    assert (answer.reply, answer.detail) == (Reply.GIVEN, "")


async def test_an_answer_without_end_is_not_kept():
    async with scripted_engine(ScriptedEngine("tiny", body="x" * 300_000)) as engine:
        answer = await asked(engine)
    assert (answer.reply, answer.detail) == (Reply.BROKEN, "an answer that is not JSON")


async def test_the_deadline_is_kept_whatever_the_engine_does():
    async with scripted_engine(ScriptedEngine("tiny", mode="hang")) as engine:
        answer = await asked(engine, deadline_s=0.1)
    assert (answer.reply, answer.detail) == (Reply.LATE, "none within 0.1 s")
    assert 0.1 <= answer.took_s < 20.0


async def test_nobody_listening_is_no_word_about_the_engine():
    engine = ScriptedEngine("tiny")
    async with scripted_engine(engine):
        pass
    assert (await asked(engine)).reply is Reply.UNREACHED


async def test_the_model_is_the_first_that_the_engine_lists_unless_told():
    async with scripted_engine(ScriptedEngine("tiny", pages=MODELS)) as engine:
        assert (await asked(engine, model="", path="/metrics")).reply is Reply.GIVEN
        assert json.loads(engine.last_body)["model"] == "tiny"
        engine.pages["/v1/models"] = "{}"
        answer = await asked(engine, model="")
        assert answer.reply is Reply.UNUSABLE
        assert answer.detail == "/v1/models lists no model; set probe_model"


async def test_a_list_of_models_that_cannot_be_read_names_none():
    for listed in ("[" * 100_000, "[]", '{"data": []}', "nonsense"):
        async with scripted_engine(ScriptedEngine("tiny", pages={"/v1/models": listed})) as engine:
            answer = await asked(engine, model="")
        assert answer.reply is Reply.UNUSABLE
        assert "lists no model" in answer.detail


async def test_an_engine_with_chat_only_is_asked_by_chat():
    engine = ScriptedEngine("tiny", absent=frozenset({"/v1/completions"}))
    async with scripted_engine(engine):
        assert (await asked(engine, times=2)).reply is Reply.GIVEN
    assert engine.requests == 3, "the second time it is asked by chat at once"
    body = json.loads(engine.last_body)
    assert body["max_tokens"] == 1
    assert body["messages"]


async def test_the_api_key_is_read_anew_and_a_missing_file_is_told(tmp_path):
    key = tmp_path / "key"
    async with scripted_engine(ScriptedEngine("tiny")) as engine:
        answer = await asked(engine, key_file=key)
        assert answer.reply is Reply.UNUSABLE
        assert "api_key_file" in answer.detail
        key.write_text("secret\n")
        assert (await asked(engine, key_file=key)).reply is Reply.GIVEN
        assert engine.last_headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("content", "why"), [(b"a\nb\n", "expected one line"), (b"\xff", "not UTF-8 text")]
)
async def test_a_key_that_no_header_can_hold_is_told(tmp_path, content, why):
    key = tmp_path / "key"
    key.write_bytes(content)
    async with scripted_engine(ScriptedEngine("tiny")) as engine:
        answer = await asked(engine, key_file=key)
    assert (answer.reply, answer.detail) == (Reply.UNUSABLE, f"api_key_file: {why}")


async def test_connections_are_not_kept_so_that_none_can_be_closing():
    async with scripted_engine(ScriptedEngine("tiny")) as engine:
        await asked(engine, times=3)
        assert engine.last_headers["Connection"] == "close"
