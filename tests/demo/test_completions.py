from __future__ import annotations

import json

import pytest

from demo.completions import Answer, RequestError, parse_request
from demo.load import plain_fault, stream_fault


def raw(**body) -> bytes:
    return json.dumps(body).encode()


MESSAGES = [{"role": "user", "content": "a" * 40}]


def test_a_chat_request_counts_the_tokens_of_its_messages():
    request = parse_request(raw(model="m", messages=MESSAGES * 2, max_tokens=7), chat=True)

    assert (request.model, request.prompt_tokens, request.max_tokens) == ("m", 20, 7)
    assert not request.stream


def test_a_completion_takes_text_or_token_ids():
    assert parse_request(raw(prompt="a" * 9), chat=False).prompt_tokens == 3
    assert parse_request(raw(prompt=[1, 2, 3, 4]), chat=False).prompt_tokens == 4


@pytest.mark.parametrize(
    ("body", "chat", "text"),
    [
        pytest.param(b"{", True, "not JSON", id="broken"),
        pytest.param(b"[]", True, "list; expected an object", id="not an object"),
        pytest.param(raw(messages=[]), True, "messages is missing", id="no messages"),
        pytest.param(raw(messages=["x"]), True, "else than objects", id="message not an object"),
        pytest.param(raw(prompt=""), False, "prompt is missing", id="no prompt"),
        pytest.param(raw(prompt="x", max_tokens=0), False, "max_tokens is 0", id="zero"),
        pytest.param(raw(prompt="x", max_tokens="9"), False, "max_tokens is '9'", id="text"),
        pytest.param(raw(prompt="x", max_tokens=True), False, "max_tokens is True", id="boolean"),
    ],
)
def test_bad_requests_are_refused_as_an_engine_would(body, chat, text):
    with pytest.raises(RequestError, match=text) as caught:
        parse_request(body, chat=chat)

    assert caught.value.body()["error"]["code"] == 400


def answer(*, chat: bool, include_usage: bool = False) -> Answer:
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": include_usage}}
    body |= {"messages": MESSAGES} if chat else {"prompt": "x" * 40}
    return Answer(id="id-1", created_unix_s=1, request=parse_request(raw(**body), chat=chat))


def events(stream: bytes) -> list[dict]:
    *parts, done, rest = stream.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def streamed(shape: Answer) -> bytes:
    chunks = shape.chunk(0, 3, last=False) + shape.chunk(3, 1, last=True)
    return shape.opening() + chunks + shape.closing(4)


def test_a_chat_stream_names_the_role_first_and_the_reason_last():
    role, first, last = events(streamed(answer(chat=True)))

    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["finish_reason"] is None
    assert len(first["choices"][0]["delta"]["content"].split()) == 3
    assert last["choices"][0]["finish_reason"] == "length"


def test_a_completion_stream_carries_text():
    first, last = events(streamed(answer(chat=False)))

    assert first["object"] == "text_completion"
    assert len((first["choices"][0]["text"] + last["choices"][0]["text"]).split()) == 4


def test_usage_comes_in_a_chunk_without_choices_when_asked_for():
    *_, usage = events(streamed(answer(chat=True, include_usage=True)))

    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


def test_a_plain_answer_has_usage_and_the_shape_of_its_path():
    chat, text = answer(chat=True).whole(4), answer(chat=False).whole(4)

    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert len(text["choices"][0]["text"].split()) == 4
    assert chat["usage"]["total_tokens"] == 14


def test_whole_answers_have_no_fault():
    assert stream_fault(streamed(answer(chat=True, include_usage=True))) == ""
    assert plain_fault(json.dumps(answer(chat=True).whole(2)).encode()) == ""


ERROR_EVENT = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b"", "without [DONE]", id="empty"),
        pytest.param(streamed(answer(chat=True))[:-14], "without [DONE]", id="cut between events"),
        pytest.param(streamed(answer(chat=True))[:-3], "without [DONE]", id="cut inside an event"),
        pytest.param(b"data: [DONE]\n\n", "no choices", id="an aborting vLLM: nothing but DONE"),
        pytest.param(ERROR_EVENT, "error inside", id="a dead vLLM worker: 200 and an error event"),
        pytest.param(b"data: {\n\ndata: [DONE]\n\n", "not JSON", id="broken event"),
        pytest.param(b'{"choices": [1]}', "without [DONE]", id="JSON where a stream was asked"),
    ],
)
def test_a_broken_stream_says_what_is_wrong(body, fault):
    assert fault in stream_fault(body)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b"upstream connect error", "not JSON", id="text"),
        pytest.param(b'{"error": {}}', "no choices", id="error object"),
        pytest.param(b"[]", "no choices", id="list"),
    ],
)
def test_a_broken_plain_answer_says_what_is_wrong(body, fault):
    assert fault in plain_fault(body)
