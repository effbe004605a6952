"""Transcripts of the protocol: what a gateway says, and what it is answered, message by message."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.picking import a_desk
from tests.fakes.plans import a_model, a_static_tier, a_tier, a_topology
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import Unreadable
from xds_server.istio.picker.decide import Desk, PickerOptions
from xds_server.istio.picker.exchange import Exchange
from xds_server.istio.picker.proto import CHUNK_BYTES, BadMessageError

HERE = "127.0.0.1:8001"
BODY = b'{"model": "chat", "messages": []}'
READ = b'{"model": "big", "messages": []}'
PASSED, HELD = "chat", "big"
"""What the tier serves: the model's own name leaves bodies as they are."""


def desk(serves: str = PASSED, **about: Any) -> Desk:
    tiers = (a_tier("primary", serves, [8001]), a_static_tier())
    return a_desk(a_topology(a_model(tiers=tiers)), **about)


def headers(*, path: str = "/v1/chat/completions", ends: bool = False, **more: str) -> Any:
    message = wire.ProcessingRequest()
    fields = {":method": "POST", ":authority": "llm", ":path": path, **more}
    for name, value in fields.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    message.request_headers.end_of_stream = ends
    message.protocol_config.request_body_mode = 4
    message.protocol_config.response_body_mode = 4
    return message


def body(data: bytes, *, ends: bool = False) -> Any:
    message = wire.ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = data, ends
    return message


def trailers() -> Any:
    message = wire.ProcessingRequest()
    message.request_trailers.SetInParent()
    return message


def answer_headers(
    *, served: str | None = HERE, ends: bool = False, status: bytes = b"200", took: bool = True
) -> Any:
    message = wire.ProcessingRequest()
    fields = message.response_headers.headers.headers
    fields.add(key=":status", raw_value=status)
    if took:
        fields.add(key="x-envoy-upstream-service-time", raw_value=b"3")
    message.response_headers.end_of_stream = ends
    if served is not None:
        fields = message.metadata_context.filter_metadata["envoy.lb"].fields
        fields["x-gateway-destination-endpoint-served"].string_value = served
    return message


def answer_body(data: bytes, *, ends: bool = False) -> Any:
    message = wire.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = data, ends
    return message


def answer_trailers() -> Any:
    message = wire.ProcessingRequest()
    message.response_trailers.SetInParent()
    return message


def told(raw: bytes) -> str:
    """Return an answer in a few words."""
    message = wire.ProcessingResponse.FromString(raw)
    kind = message.WhichOneof("response")
    if kind == "immediate_response":
        return str(message.immediate_response.status.code)
    if kind == "request_headers":
        mutation = message.request_headers.response.header_mutation
        [option] = mutation.set_headers
        assert option.header.key == "x-gateway-destination-endpoint"
        struct = message.dynamic_metadata.fields["envoy.lb"].struct_value
        named = struct.fields["x-gateway-destination-endpoint"].string_value
        assert option.header.raw_value.decode() == named
        return f"to {named}"
    if kind in ("request_body", "response_body"):
        response = getattr(message, kind).response
        assert response.body_mutation.WhichOneof("mutation") == "streamed_response"
        piece = response.body_mutation.streamed_response
        what = "body" if kind == "request_body" else "answer"
        return f"{what} {len(piece.body)}{' end' if piece.end_of_stream else ''}"
    return {"response_headers": "answer headers", "request_trailers": "trailers"}.get(
        kind, "answer trailers"
    )


def talk(exchange: Exchange, *messages: Any) -> list[list[str]]:
    """Return the answers to each message."""
    return [[told(each) for each in exchange.take(one.SerializeToString())] for one in messages]


TO = f"to {HERE}"
TRANSCRIPTS = [
    pytest.param(PASSED, [headers(), body(BODY, ends=True)], [[TO], ["body 33 end"]], id="passed"),
    pytest.param(
        HELD, [headers(), body(BODY, ends=True)], [[], [TO, "body 32 end"]], id="held and rewritten"
    ),
    pytest.param(
        PASSED,
        [headers(), body(BODY[:5]), body(BODY[5:]), body(b"", ends=True)],
        [[TO], ["body 5"], ["body 28"], ["body 0 end"]],
        id="pieces passed",
    ),
    pytest.param(
        HELD,
        [headers(), body(BODY[:5]), body(BODY[5:]), body(b"", ends=True)],
        [[], [], [], [TO, "body 32 end"]],
        id="pieces held",
    ),
    pytest.param(
        PASSED,
        [headers(), body(BODY), trailers()],
        [[TO], ["body 33"], ["trailers"]],
        id="trailers",
    ),
    pytest.param(
        HELD,
        [headers(), body(BODY), trailers()],
        [[], [], [TO, "body 32", "trailers"]],
        id="trailers end what was held",
    ),
    pytest.param(PASSED, [headers(), trailers()], [[TO], ["trailers"]], id="trailers alone"),
    pytest.param(HELD, [headers(), trailers()], [[], ["400"]], id="trailers alone, no model"),
    pytest.param(PASSED, [headers(ends=True)], [[TO]], id="no body"),
    pytest.param(HELD, [headers(ends=True)], [[TO]], id="no body, nothing to hold"),
    pytest.param(PASSED, [headers(), body(b"", ends=True)], [[TO], ["body 0 end"]], id="empty"),
    pytest.param(HELD, [headers(), body(b"", ends=True)], [[], ["400"]], id="empty, no model"),
    pytest.param(
        PASSED,
        [headers(), body(BODY, ends=True), body(b"", ends=True), body(BODY, ends=True), trailers()],
        [[TO], ["body 33 end"], [], [], []],
        id="the end comes again",
    ),
    pytest.param(
        HELD,
        [headers(), body(BODY, ends=True), body(b"", ends=True), body(BODY[-5:], ends=True)],
        [[], [TO, "body 32 end"], [], []],
        id="the end comes again, held",
    ),
    pytest.param(
        HELD,
        [headers(), body(b"no json", ends=True), body(b"", ends=True), answer_headers()],
        [[], ["400"], [], []],
        id="after an answer of ours nothing is said",
    ),
    pytest.param(
        PASSED,
        [headers(path="/elsewhere"), body(BODY, ends=True)],
        [["404"], []],
        id="no such path",
    ),
    pytest.param(
        PASSED,
        [headers(), body(b"x" * 150_000, ends=True)],
        [[TO], [f"body {CHUNK_BYTES}", f"body {CHUNK_BYTES}", "body 26000 end"]],
        id="large pieces are cut",
    ),
    pytest.param(
        PASSED,
        [headers(), body(b"x" * (2 * CHUNK_BYTES), ends=True)],
        [[TO], [f"body {CHUNK_BYTES}", f"body {CHUNK_BYTES} end"]],
        id="cut without a rest",
    ),
    pytest.param(
        PASSED,
        [
            headers(),
            answer_headers(),
            body(BODY),
            answer_body(b"early", ends=True),
            body(b"", ends=True),
        ],
        [[TO], ["answer headers"], ["body 33"], ["answer 5 end"], ["body 0 end"]],
        id="an answer before the end of the request",
    ),
    pytest.param(
        PASSED,
        [
            headers(ends=True),
            answer_headers(),
            answer_body(b"a"),
            answer_body(b""),
            answer_trailers(),
        ],
        [[TO], ["answer headers"], ["answer 1"], ["answer 0"], ["answer trailers"]],
        id="an answer with trailers",
    ),
    pytest.param(
        PASSED,
        [
            headers(ends=True),
            answer_headers(),
            answer_body(b"a", ends=True),
            answer_body(b"a", ends=True),
        ],
        [[TO], ["answer headers"], ["answer 1 end"], []],
        id="the end of an answer comes again",
    ),
    pytest.param(
        PASSED,
        [headers(ends=True), answer_headers(ends=True), answer_body(b"", ends=True)],
        [[TO], ["answer headers"], []],
        id="an answer without a body",
    ),
    pytest.param(
        PASSED,
        [answer_headers(), answer_body(b"a", ends=True)],
        [["answer headers"], ["answer 1 end"]],
        id="an answer alone",
    ),
    pytest.param(PASSED, [body(BODY, ends=True)], [["body 33 end"]], id="a body alone"),
]


@pytest.mark.parametrize(("serves", "messages", "expected"), TRANSCRIPTS)
def test_what_is_said_is_answered(serves, messages, expected):
    here = desk(serves)
    exchange = Exchange(here)
    assert talk(exchange, *messages) == expected
    exchange.close()
    assert here.picker.in_flight == {}


def test_what_is_under_way_is_counted_from_the_pick_to_the_end_of_the_answer():
    here = desk()
    exchange = Exchange(here)
    talk(exchange, headers(), body(BODY, ends=True))
    assert here.picker.in_flight == {HERE: 1}
    talk(exchange, answer_headers(), answer_body(b"a"))
    assert here.picker.in_flight == {HERE: 1}
    talk(exchange, answer_body(b"", ends=True))
    assert here.picker.in_flight == {}
    exchange.close()
    assert here.picker.in_flight == {}


@pytest.mark.parametrize(
    ("served", "landing", "counted"),
    [
        (HERE, "picked", HERE),
        ("10.0.0.9:1", "elsewhere", "10.0.0.9:1"),
        (None, "unknown", HERE),
    ],
)
def test_who_answers_is_who_is_counted(served, landing, counted):
    here = desk()
    exchange = Exchange(here)
    talk(exchange, headers(ends=True), answer_headers(served=served))
    assert here.picker.in_flight == {counted: 1}
    assert here.tally.count("fleet_picker_landings_total", landing) == 1


TRUTH = ("x-served-model", "x-model-downgraded", "x-degrade-reason")
FIRST, SECOND, THIRD = "127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"
UP, DOWN = EndpointHealth.HEALTHY, EndpointHealth.UNHEALTHY


def chain(split: tuple[int, ...], health: EndpointHealth = UP) -> Desk:
    """Three tiers with one instance each and a static one; the first one's health is given."""
    tiers = [a_tier(f"t{index}", f"m{index}", [8001 + index]) for index in range(3)]
    return a_desk(
        a_topology(a_model(tiers=(*tiers, a_static_tier()))),
        split,
        rules=("kv_pressure",) * 4,
        health={"t0-0": health},
    )


@pytest.mark.parametrize(
    ("split", "health", "answer", "expected"),
    [
        ((1000, 0, 0, 0), UP, {"served": FIRST}, ("m0", None, None)),
        ((0, 1000, 0, 0), UP, {"served": SECOND}, ("m1", "true", "kv_pressure")),
        ((1000, 0, 0, 0), DOWN, {"served": SECOND}, ("m1", "true", "failover")),
        ((1000, 0, 0, 0), UP, {"served": THIRD}, ("m2", "true", "failover")),
        ((0, 1000, 0, 0), UP, {"served": THIRD}, ("m2", "true", "failover")),
        ((0, 1000, 0, 0), UP, {"served": FIRST}, ("m0", None, None)),
        ((0, 1000, 0, 0), UP, {"served": None}, ("m1", "true", "kv_pressure")),
        ((0, 1000, 0, 0), UP, {"served": "10.9.9.9:1"}, (None, None, None)),
        ((0, 1000, 0, 0), UP, {"served": SECOND, "status": b"503"}, ("m1", "true", "kv_pressure")),
        ((0, 1000, 0, 0), UP, {"served": SECOND, "status": b"503", "took": False}, (None, None, None)),
        ((0, 1000, 0, 0), UP, {"served": SECOND, "took": False}, ("m1", "true", "kv_pressure")),
    ],
    ids=["the first", "as planned", "the first is down", "walked down", "walked down from below", "walked up",
         "nobody says who", "none of ours", "an engine's error", "the gateway's own error",
         "a gateway that does not say how long it took"],
)  # fmt: skip
def test_the_client_hears_the_whole_truth_of_who_answered_and_no_engines_own(
    split, health, answer, expected
):
    exchange = Exchange(chain(split, health))
    talk_raw = [headers(), body(b'{"model": "chat"}', ends=True)]
    for each in talk_raw:
        exchange.take(each.SerializeToString())
    [raw] = exchange.take(answer_headers(**answer).SerializeToString())
    mutation = wire.ProcessingResponse.FromString(raw).response_headers.response.header_mutation
    said = {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
    assert tuple(said.get(name) for name in TRUTH) == expected
    assert set(mutation.remove_headers) == set(TRUTH) - said.keys()


def test_a_body_that_is_too_large_to_be_read_is_answered_at_once():
    here = desk(HELD, options=PickerOptions(max_body_bytes=1024))
    exchange = Exchange(here)
    pieces = [body(b"x" * 600), body(b"x" * 600), body(b"x", ends=True)]
    assert talk(exchange, headers(), *pieces) == [[], [], ["413"], []]


def test_all_bodies_together_may_be_held_up_to_a_limit_and_nothing_stays(monkeypatch):
    monkeypatch.setattr("xds_server.istio.picker.exchange.MOST_HELD_BYTES", 1000)
    here = desk(HELD)
    slow, late, whole = Exchange(here), Exchange(here), Exchange(here)
    assert talk(slow, headers(), body(b"x" * 600)) == [[], []]
    assert talk(late, headers(), body(b"x" * 600)) == [[], ["503"]]
    assert talk(whole, headers(), body(BODY, ends=True)) == [[], [TO, "body 32 end"]]
    assert here.held_bytes == 600
    slow.close()
    assert here.held_bytes == 0
    for each in (slow, late, whole):
        each.close()
    assert here.held_bytes == 0


@pytest.mark.parametrize(
    ("unreadable", "expected"),
    [(Unreadable.REFUSE, [[], ["400"]]), (Unreadable.FORWARD, [[], [TO, "body 7 end"]])],
)
def test_a_body_that_cannot_be_read_is_refused_or_forwarded_as_the_policy_says(
    unreadable, expected
):
    exchange = Exchange(desk(HELD, unreadable=unreadable))
    assert talk(exchange, headers(), body(b"no json", ends=True)) == expected


def test_a_model_that_is_no_string_is_refused_or_forwarded_as_well():
    raw = b'{"model": 7}'
    assert talk(Exchange(desk(HELD)), headers(), body(raw, ends=True)) == [[], ["400"]]
    forwards = Exchange(desk(HELD, unreadable=Unreadable.FORWARD))
    assert talk(forwards, headers(), body(raw, ends=True)) == [[], [TO, "body 12 end"]]


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "GRPC"])
def test_bodies_that_come_otherwise_are_refused_with_the_reason(mode):
    message = headers()
    modes = type(message.protocol_config).DESCRIPTOR.fields_by_name["request_body_mode"].enum_type
    message.protocol_config.request_body_mode = modes.values_by_name[mode].number
    with pytest.raises(BadMessageError, match=f"{mode}: expected FULL_DUPLEX_STREAMED"):
        Exchange(desk()).take(message.SerializeToString())


def test_without_bodies_the_headers_decide():
    message = headers()
    message.protocol_config.request_body_mode = 0
    assert talk(Exchange(desk(HELD)), message) == [[TO]]


@pytest.mark.parametrize("raw", [b"\xff", b""], ids=["broken", "empty"])
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(BadMessageError):
        Exchange(desk()).take(raw)


def test_a_body_mode_of_the_future_is_refused():
    message = headers()
    message.protocol_config.request_body_mode = 77
    with pytest.raises(BadMessageError, match="77"):
        Exchange(desk()).take(message.SerializeToString())


MESSAGES = st.one_of(
    st.builds(headers, ends=st.booleans(), path=st.sampled_from(["/v1/x", "/"])),
    st.builds(body, st.binary(max_size=20) | st.just(BODY), ends=st.booleans()),
    st.builds(trailers),
    st.builds(answer_headers, served=st.sampled_from([HERE, "x:1", None]), ends=st.booleans()),
    st.builds(answer_body, st.binary(max_size=20), ends=st.booleans()),
    st.builds(answer_trailers),
)


@settings(max_examples=200, deadline=None)
@given(serves=st.sampled_from([PASSED, HELD]), messages=st.lists(MESSAGES, max_size=12))
def test_no_order_of_messages_breaks_it_or_leaves_anything_counted(serves, messages):
    here = desk(serves)
    exchange = Exchange(here)
    ends = 0
    for said in talk(exchange, *messages):
        ends += sum(each.startswith("body") and each.endswith("end") for each in said)
        assert sum(here.picker.in_flight.values()) <= 1
    assert ends <= 1
    exchange.close()
    assert here.picker.in_flight == {}
    assert here.held_bytes == 0


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200_000), cuts=st.lists(st.integers(0, 200_000), max_size=6))
def test_bodies_are_passed_on_byte_for_byte(data, cuts):
    edges = sorted({0, len(data), *(each for each in cuts if each < len(data))})
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)] or [b""]
    exchange = Exchange(desk())
    exchange.take(headers().SerializeToString())
    got = bytearray()
    for index, piece in enumerate(pieces):
        is_last = index == len(pieces) - 1
        answers = exchange.take(body(piece, ends=is_last).SerializeToString())
        for number, raw in enumerate(answers):
            message = wire.ProcessingResponse.FromString(raw)
            part = message.request_body.response.body_mutation.streamed_response
            assert len(part.body) <= CHUNK_BYTES
            assert part.end_of_stream == (is_last and number == len(answers) - 1)
            got += part.body
    assert bytes(got) == data


def test_errors_have_the_shape_that_clients_know():
    exchange = Exchange(desk(HELD))
    [raw] = [
        *exchange.take(headers().SerializeToString()),
        *exchange.take(body(b"{}x", ends=True).SerializeToString()),
    ]
    reply = wire.ProcessingResponse.FromString(raw).immediate_response
    assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"
    sent = {each.header.key: each.header.raw_value for each in reply.headers.set_headers}
    assert sent["content-type"] == b"application/json"
