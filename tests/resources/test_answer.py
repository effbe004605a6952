"""The static answer in the dialects of the OpenAI protocol."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.resources.static.answer import Dialect, streamed, whole

SIMPLE = {"choices": [{"message": {"role": "assistant", "content": "busy"}}]}


def document(body, dialect=Dialect.CHAT):
    return json.loads(whole(body, dialect=dialect, model="static"))


def chunks(body, dialect=Dialect.CHAT):
    text = streamed(body, dialect=dialect, model="static")
    events = text.removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def test_a_short_chat_answer_is_completed_to_what_the_protocol_requires():
    assert document(SIMPLE) == {
        "id": "chatcmpl-static",
        "object": "chat.completion",
        "created": 0,
        "model": "static",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "busy"},
                "finish_reason": "stop",
            }
        ],
    }


def test_what_the_operator_wrote_is_kept():
    body = {
        "id": "mine",
        "model": "house",
        "created": 5,
        "choices": [{"index": 3, "finish_reason": "length", "message": {"content": "x"}}],
        "usage": {"total_tokens": 0},
        "extra": [1],
    }
    answer = document(body)
    assert answer | {"choices": None} == {
        **body,
        "object": "chat.completion",
        "choices": None,
    }
    assert answer["choices"] == [
        {
            "index": 3,
            "finish_reason": "length",
            "message": {"role": "assistant", "content": "x"},
        }
    ]


def test_a_chat_answer_streams_as_a_chunk_with_everything_and_one_that_ends_it():
    first, last = chunks(SIMPLE)
    assert first["object"] == last["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {
            "index": 0,
            "finish_reason": None,
            "delta": {"role": "assistant", "content": "busy"},
        }
    ]
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert {key: first[key] for key in ("id", "created", "model")} == {
        "id": "chatcmpl-static",
        "created": 0,
        "model": "static",
    }


@pytest.mark.parametrize("body", [SIMPLE, {"choices": [{"text": "busy"}]}], ids=["chat", "text"])
def test_either_dialect_can_be_written_and_both_are_spoken(body):
    assert document(body)["choices"][0]["message"] == {"role": "assistant", "content": "busy"}
    text = document(body, Dialect.TEXT)
    assert text["object"] == "text_completion"
    assert text["choices"][0]["text"] == "busy"
    assert "message" not in text["choices"][0]
    first, last = chunks(body, Dialect.TEXT)
    assert first["object"] == last["object"] == "text_completion"
    assert (first["choices"][0]["text"], last["choices"][0]["text"]) == ("busy", "")
    assert last["choices"][0]["finish_reason"] == "stop"


def test_an_object_name_follows_the_dialect_but_an_own_one_is_kept():
    body = {"object": "chat.completion", **SIMPLE}
    assert document(body, Dialect.TEXT)["object"] == "text_completion"
    assert document({"object": "own", **SIMPLE}, Dialect.TEXT)["object"] == "own"


def test_tool_calls_get_the_index_that_chunks_need():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}
    assert chunks(body)[0]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **call}]
    assert document(body)["choices"][0]["message"]["tool_calls"] == [call]
    assert document(body, Dialect.TEXT)["choices"][0]["text"] == ""


@pytest.mark.parametrize(
    "body",
    [{}, {"error": {"message": "busy"}}, {"choices": []}, {"choices": "none"}, {"choices": [1]}],
)
def test_a_document_of_no_dialect_is_sent_as_it_is(body):
    for dialect in Dialect:
        assert document(body, dialect) == body
        assert chunks(body, dialect) == [body]


def test_several_choices_stream_one_after_the_other():
    body = {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}
    assert [chunk["choices"][0]["index"] for chunk in chunks(body)] == [0, 0, 1, 1]


@given(st.text())
def test_any_text_survives_both_forms(text):
    body = {"choices": [{"message": {"content": text}}]}
    assert document(body)["choices"][0]["message"]["content"] == text
    assert chunks(body)[0]["choices"][0]["delta"]["content"] == text
