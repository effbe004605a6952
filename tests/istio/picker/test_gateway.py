"""A real Envoy with Istio's filters for an InferencePool, the picker, and engines behind it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.envoy import eventually
from tests.fakes.gateway_lab import ASK, PATH, lab
from tests.fakes.inference_gateway import inference_gateway
from tests.fakes.picking import running_picker
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from tests.fakes.waiting import PATIENCE_S
from xds_server.core.plan import EndpointHealth
from xds_server.istio.picker.decide import PickerOptions

pytestmark = pytest.mark.envoy


async def test_endpoints_get_their_weights_and_tiers_theirs(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        here.plan((800, 200, 0), weights={"primary-0": 3000, "primary-1": 1000})
        for _ in range(400):
            assert (await here.ask())[0] == 200
        counts = {name: each.requests for name, each in here.engines.items()}
        assert counts["primary-0"] / 400 == pytest.approx(0.6, abs=0.09)
        assert counts["primary-1"] / 400 == pytest.approx(0.2, abs=0.08)
        assert counts["fallback-0"] / 400 == pytest.approx(0.2, abs=0.08)
        assert here.landed("picked") == 400
        assert here.landed("elsewhere") == 0
        assert await here.spurious() == 0
        assert here.desk.picker.in_flight == {}


async def test_a_faulted_instance_gets_no_request_that_comes_after_the_plan(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        for turn in range(20):
            gone, stays = ("primary-0", "primary-1") if turn % 2 else ("primary-1", "primary-0")
            here.plan(health={gone: EndpointHealth.UNHEALTHY})
            before = here.engines[gone].requests
            for _ in range(5):
                assert (await here.ask())[0] == 200
            assert here.engines[gone].requests == before
            assert here.engines[stays].requests >= 5


@pytest.mark.parametrize("mode", ["503", "refuses"], ids=["a 503", "a refused connection"])
async def test_the_list_is_walked_when_the_picked_endpoint_refuses(tmp_path, mode):
    async with lab(tmp_path, scripted=True) as here:
        here.plan(weights={"primary-0": 1_000_000, "primary-1": 1})
        if mode == "refuses":
            await here.engines["primary-0"].stop_listening()
        else:
            here.engines["primary-0"].mode = mode
        for _ in range(10):
            status, body, _ = await here.ask()
            assert status == 200
            assert json.loads(body)["model"] == "primary-1"
        assert here.landed("retried") == 10
        assert here.desk.picker.in_flight == {}


async def test_the_list_leads_to_the_next_tier_where_bodies_are_the_same(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        here.plan(health={"primary-1": EndpointHealth.DRAINING})
        here.engines["primary-0"].mode = "503"
        status, _, headers = await here.ask()
        assert status == 200
        assert headers["x-model-downgraded"] == "true"


def megabyte() -> bytes:
    text = os.urandom(700_000).hex()[:1_200_000]
    return json.dumps({"model": "chat", "messages": [{"content": text}]}).encode()


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]
        await asyncio.sleep(0)


@pytest.mark.parametrize("serves", [("chat", "chat"), ("big", "small")], ids=["as it is", "read"])
@pytest.mark.parametrize(
    "piece", [None, 7_001, 200_000], ids=["whole", "7 kB pieces", "200 kB pieces"]
)
async def test_a_megabyte_arrives_and_comes_back_byte_for_byte(tmp_path, serves, piece):
    async with lab(tmp_path, serves=serves) as here:
        body = megabyte()
        expected = body if serves[0] == "chat" else body.replace(b'"chat"', b'"big"', 1)
        for _ in range(3):
            data: Any = io.BytesIO(body) if piece is None else in_pieces(body, piece)
            async with here.session.post(here.url + PATH, data=data) as answer:
                assert answer.status == 200
                got = await answer.read()
            assert hashlib.sha256(got).digest() == hashlib.sha256(expected).digest()
        assert await here.spurious() == 0
        assert here.desk.picker.in_flight == {}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model": "anything", "n": 1e400}', b'{"model": "big", "n": 1e400}'),
        (
            b'{"messages":[{"model":"x"}],\n "model":\t"y"}',
            b'{"messages":[{"model":"x"}],\n "model":\t"big"}',
        ),
        (b'{"messages":[]}', b'{"messages":[]}'),
    ],
    ids=["model", "only the top level", "none"],
)
async def test_the_body_names_the_model_that_the_tier_serves(tmp_path, body, expected):
    async with lab(tmp_path, serves=("big", "small")) as here:
        status, got, headers = await here.ask(body)
        assert (status, got) == (200, expected)
        assert headers["x-served-model"] == "big"
        assert "x-model-downgraded" not in headers


async def test_a_lower_tier_says_that_it_is_one(tmp_path):
    async with lab(tmp_path, serves=("big", "small")) as here:
        here.plan((0, 1000, 0), rules=("kv_pressure", "kv_pressure"))
        status, got, headers = await here.ask({"model": "chat"})
        assert (status, json.loads(got)) == (200, {"model": "small"})
        assert headers["x-served-model"] == "small"
        assert headers["x-model-downgraded"] == "true"
        assert headers["x-degrade-reason"] == "kv_pressure"


async def test_events_pass_one_by_one_and_unbroken(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        until = asyncio.Event()
        engine = here.engines["primary-0"]
        engine.until, engine.pause_s = until, 0.02
        here.plan(health={"primary-1": EndpointHealth.DRAINING})
        asked = {**ASK, "stream": True}
        async with here.session.post(here.url + PATH, json=asked) as answer:
            got = b""
            for index in range(10):
                got += await answer.content.readuntil(b"\n\n")  # while the engine still runs
                assert got.count(b"data: ") == index + 1
            until.set()
            got += await answer.read()
        assert got.endswith(b"data: [DONE]\n\n")
        events = [json.loads(each[6:]) for each in got.decode().split("\n\n")[:-2]]
        said = [each["choices"][0]["delta"]["content"] for each in events]
        assert said == [str(index) for index in range(len(said))]
        await eventually(lambda: _is(here.desk.picker.in_flight == {}), what="nothing under way")


async def _is(value: bool) -> bool:
    return value


async def test_a_client_that_leaves_in_the_middle_is_counted_no_more(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        engine = here.engines["primary-0"]
        engine.until, engine.pause_s = asyncio.Event(), 0.02
        here.plan(health={"primary-1": EndpointHealth.DRAINING})
        for _ in range(3):
            answer = await here.session.post(here.url + PATH, json={**ASK, "stream": True})
            await answer.content.readuntil(b"\n\n")
            assert here.desk.picker.in_flight == {f"127.0.0.1:{engine.port}": 1}
            answer.close()
            await eventually(lambda: _is(here.desk.picker.in_flight == {}), what="counted no more")
        await eventually(lambda: _is(here.picker.streams == 0), what="streams over")


async def test_a_client_that_leaves_before_its_body_is_whole_leaves_nothing_behind(tmp_path):
    async with lab(tmp_path, serves=("big", "small")) as here:
        host, port = here.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n".encode()
            + b'{"model": "chat", "messages": "'
        )
        await writer.drain()
        await eventually(lambda: _is(here.picker.streams == 1), what="asked")
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: _is(here.picker.streams == 0), what="over")
        assert here.desk.picker.in_flight == {}
        assert (await here.ask())[0] == 200


async def test_nothing_ready_is_503_and_what_the_plan_sheds_429(tmp_path):
    async with lab(tmp_path) as here:
        here.plan((0, 0, 1000))
        status, body, headers = await here.ask()
        assert status == 429
        assert headers["retry-after"] == "1"
        assert headers["x-degrade-reason"] == "shed"
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        names = ("primary-0", "primary-1", "fallback-0")
        here.plan((0, 0, 1000), health=dict.fromkeys(names, EndpointHealth.UNHEALTHY))
        status, body, headers = await here.ask()
        assert status == 503
        assert json.loads(body)["error"]["code"] == "no_instance"
        assert not here.engines["primary-0"].received


async def test_a_request_with_trailers_keeps_its_body(tmp_path):
    # Without a retry policy: with one, Envoy 1.40 sends such a body twice (docs/istio/endpoint-picker.md).
    for serves, expected in ((("chat", "chat"), b"chat"), (("big", "small"), b"big")):
        async with lab(tmp_path / serves[0], serves=serves, retries=0) as here:
            host, port = here.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = b'{"model": "chat", "messages": []}'
            writer.write(
                f"POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
                "connection: close\r\ntrailer: x-checksum\r\n\r\n".encode()
                + f"{len(body):x}\r\n".encode()
                + body
                + b"\r\n0\r\nx-checksum: abc\r\n\r\n"
            )
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200")
            [received] = [*here.engines["primary-0"].received, *here.engines["primary-1"].received]
            assert received.body == body.replace(b"chat", expected)
            assert await here.spurious() == 0


@pytest.mark.parametrize("serves", [("chat", "chat"), ("big", "small")], ids=["as it is", "read"])
async def test_requests_without_a_body_are_picked_for_too(tmp_path, serves):
    async with lab(tmp_path, serves=serves) as here:
        async with here.session.get(here.url + "/v1/models") as answer:
            assert answer.status == 200
        async with here.session.post(here.url + PATH, headers={"content-length": "0"}) as answer:
            assert answer.status == 200
        assert here.landed("picked") == 2


async def test_an_endpoint_that_the_gateway_does_not_know_is_noticed(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        topology = a_topology(a_model(tiers=(a_tier("primary", "chat", [1]), a_static_tier())))
        here.desk.heard(topology, a_plan(topology))
        assert (await here.ask())[0] == 200  # Envoy walks round
        assert here.landed("elsewhere") == 1


async def test_the_gateways_subset_is_kept(tmp_path):
    async with lab(tmp_path / "a", scripted=True) as here:
        chosen = f"127.0.0.1:{here.engines['primary-1'].port}"
        about = {"picker": [here.picker.port], "subset": [chosen]}
        ports = [each.port for each in here.engines.values()]
        async with inference_gateway(tmp_path / "b", ports=ports, **about) as (_, url):
            for _ in range(10):
                async with here.session.post(url + PATH, json=ASK) as answer:
                    assert answer.status == 200
        assert here.engines["primary-1"].requests == 10


async def test_the_conformance_header_is_obeyed_with_the_flag_alone(tmp_path):
    for obeys in (False, True):
        options = PickerOptions(obeys_conformance=obeys)
        async with lab(tmp_path / str(obeys), scripted=True, options=options) as here:
            here.plan(weights={"primary-0": 1_000_000, "primary-1": 1})
            told = f"127.0.0.1:{here.engines['fallback-0'].port}"
            headers = {"test-epp-endpoint-selection": told}
            for _ in range(5):
                _, _, got = await here.ask(headers=headers)
            assert here.engines["fallback-0"].requests == (5 if obeys else 0)
            served = got.get("x-conformance-test-served-endpoint")
            assert served == (told if obeys else None)


async def test_a_gateway_that_buffers_bodies_is_told_why_it_cannot_be_served(tmp_path):
    modes = {"request_body_mode": "BUFFERED", "response_body_mode": "NONE", "request_trailer_mode": "SKIP",
             "response_trailer_mode": "SKIP"}  # fmt: skip
    async with lab(tmp_path, modes=modes) as here:
        assert (await here.ask())[0] == 500
        assert here.desk.tally.count("fleet_picker_refusals_total", "", "bad_message") == 1


async def test_a_large_body_that_must_be_read_is_413(tmp_path):
    options = PickerOptions(max_body_bytes=100_000)
    async with lab(tmp_path, serves=("big", "small"), options=options) as here:
        status, _, _ = await here.ask({"model": "chat", "messages": "x" * 200_000})
        assert status == 413
        assert (await here.ask())[0] == 200


@pytest.mark.parametrize(
    ("fails_open", "endpoint", "method", "expected"),
    [
        (False, "refuses", "POST", 500),
        (False, "refuses", "GET", 500),
        (True, "refuses", "POST", 500),
        (True, "refuses", "GET", 200),
        (False, "none", "POST", 500),
        (True, "none", "POST", 200),
        (True, "none", "GET", 200),
    ],
)
async def test_what_a_gateway_does_without_its_picker(
    tmp_path, fails_open, endpoint, method, expected
):
    async with lab(tmp_path / "a", scripted=True) as here:
        port = here.picker.port
        await here.picker.stop(0)
        ports = [each.port for each in here.engines.values()]
        about = {"picker": [port] if endpoint == "refuses" else [], "fails_open": fails_open}
        async with inference_gateway(tmp_path / "b", ports=ports, **about) as (_, url):
            data = None if method == "GET" else json.dumps(ASK)
            async with here.session.request(method, url + PATH, data=data) as answer:
                assert answer.status == expected


@pytest.mark.parametrize("fails_open", [False, True])
async def test_an_answer_that_is_under_way_breaks_with_its_picker(tmp_path, fails_open):
    async with lab(tmp_path, scripted=True, fails_open=fails_open) as here:
        engine = here.engines["primary-0"]
        engine.until, engine.pause_s = asyncio.Event(), 0.02
        here.plan(health={"primary-1": EndpointHealth.DRAINING})
        async with here.session.post(here.url + PATH, json={**ASK, "stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            await here.picker.stop(0)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()


async def test_a_second_picker_goes_on_when_the_first_is_gone(tmp_path):
    async with lab(tmp_path / "a", scripted=True) as here, running_picker(here.desk) as second:
        ports = [each.port for each in here.engines.values()]
        both = [here.picker.port, second.port]
        async with inference_gateway(tmp_path / "b", ports=ports, picker=both) as (_, url):
            await here.picker.stop(0)
            statuses = Counter()
            for _ in range(40):
                async with here.session.post(url + PATH, json=ASK) as answer:
                    statuses[answer.status] += 1
            assert statuses[200] >= 18  # the other half finds a refused connection: see the page


async def test_answers_under_way_survive_a_picker_that_stops_with_grace(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        engine = here.engines["primary-0"]
        engine.chunks, engine.pause_s = 20, 0.02
        here.plan(health={"primary-1": EndpointHealth.DRAINING})
        async with here.session.post(here.url + PATH, json={**ASK, "stream": True}) as answer:
            got = await answer.content.readuntil(b"\n\n")
            stopping = asyncio.create_task(here.picker.stop(5.0))
            got += await answer.read()
        await stopping
        assert got.count(b"data: ") == 21


async def test_many_at_once_are_all_answered(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        started = time.monotonic()
        answers = await asyncio.gather(*(here.ask() for _ in range(200)))
        assert {status for status, _, _ in answers} == {200}
        assert time.monotonic() - started < 20
        assert here.desk.picker.in_flight == {}
