"""A gateway on a rough day: many large requests at once, clients that leave or do not read, a picker that restarts,
engines and clients that say what is not theirs to say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.fakes.envoy import eventually
from tests.fakes.gateway_lab import ASK, PATH, lab
from tests.fakes.inference_gateway import inference_gateway
from xds_server.core.plan import EndpointHealth
from xds_server.istio.picker.server import PickerServer

pytestmark = pytest.mark.envoy
READ, PASSED = ("big", "small"), ("chat", "chat")


async def _is(value: bool) -> bool:
    return value


@pytest.mark.parametrize(("serves", "many"), [(PASSED, 100), (READ, 30)], ids=["as it is", "read"])
async def test_many_megabytes_at_once_arrive_and_come_back(tmp_path, serves, many):
    async with lab(tmp_path, serves=serves) as here:
        text = os.urandom(500_000).hex()

        async def ask(number: int) -> None:
            body = json.dumps({"model": "chat", "n": number, "messages": text}).encode()
            expected = body if serves == PASSED else body.replace(b'"chat"', b'"big"', 1)
            status, got, _ = await here.ask(body)
            assert status == 200
            assert hashlib.sha256(got).digest() == hashlib.sha256(expected).digest()

        await asyncio.gather(*(ask(number) for number in range(many)))
        assert await here.spurious() == 0
        assert here.desk.picker.in_flight == {}
        assert here.desk.held_bytes == 0
        assert here.picker.kept_bytes == 0


async def test_a_client_that_does_not_read_holds_up_nobody(tmp_path):
    async with lab(tmp_path) as here:
        body = json.dumps({"model": "chat", "messages": "x" * 20_000_000}).encode()
        host, port = here.url.removeprefix("http://").split(":")
        async with AsyncExitStack() as stack:
            for _ in range(3):
                reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
                stack.callback(writer.close)
                writer.write(
                    f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                # It reads no further.
            for _ in range(20):
                assert (await here.ask())[0] == 200
            assert here.picker.kept_bytes < 64 * 2**20
        await eventually(lambda: _is(here.picker.streams == 0), what="all are gone")
        assert here.desk.picker.in_flight == {}
        assert here.picker.kept_bytes == 0


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(tmp_path):
    chance = random.Random(5)
    async with lab(tmp_path, serves=READ) as here:
        host, port = here.url.removeprefix("http://").split(":")
        body = json.dumps({"model": "chat", "messages": "x" * 300_000}).encode()

        async def leave() -> None:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            )
            writer.write(body[: chance.choice([0, 10, 100_000, len(body)])])
            await writer.drain()
            if chance.random() < 0.5:
                with_answer = asyncio.create_task(reader.read(10))
                await asyncio.wait([with_answer], timeout=chance.random() / 10)
                with_answer.cancel()
            writer.transport.abort()

        for _ in range(6):
            await asyncio.gather(*(leave() for _ in range(50)))
            assert (await here.ask())[0] == 200
        await eventually(lambda: _is(here.picker.streams == 0), what="all are gone")
        assert here.desk.picker.in_flight == {}
        assert here.desk.held_bytes == 0
        assert here.desk.tally.count("fleet_picker_refusals_total", "", "bad_message") == 0
        assert here.desk.tally.count("fleet_picker_refusals_total", "", "error") == 0


async def test_a_picker_that_is_killed_and_comes_back_costs_what_was_under_way_and_no_more(
    tmp_path,
):
    async with lab(tmp_path / "a", scripted=True) as here:
        ports = [each.port for each in here.engines.values()]
        first = here.picker
        async with inference_gateway(tmp_path / "b", picker=[first.port], ports=ports) as (_, url):
            port, statuses, is_over = first.port, Counter[int](), asyncio.Event()

            async def ask_on() -> None:
                while not is_over.is_set():
                    async with here.session.post(url + PATH, json=ASK) as answer:
                        await answer.read()
                        statuses[answer.status] += 1

            asking = [asyncio.create_task(ask_on()) for _ in range(20)]
            for _ in range(3):
                answered = statuses[200] + 20
                await eventually(lambda: _is(statuses[200] > answered), what="answered")  # noqa: B023
                await here.picker.stop(0)
                refused = statuses[500]
                await eventually(lambda: _is(statuses[500] > refused), what="refused")  # noqa: B023
                here.picker = PickerServer(here.desk)
                here.picker.listen("127.0.0.1", port)
                await here.picker.start()
            answered = statuses[200] + 20
            await eventually(lambda: _is(statuses[200] > answered), what="answered again")
            is_over.set()
            await asyncio.gather(*asking)
            assert set(statuses) == {200, 500}
            await eventually(lambda: _is(here.picker.streams == 0), what="all are over")
            assert here.desk.picker.in_flight == {}
            await here.picker.stop(0)


async def test_a_picker_that_stops_gracefully_fails_none_of_what_began(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        until = asyncio.Event()
        for each in here.engines.values():
            each.until, each.pause_s = until, 0.05
        asking = [asyncio.create_task(here.ask({**ASK, "stream": True})) for _ in range(100)]
        await eventually(lambda: _is(here.picker.streams == 100), what="all began")
        stopping = asyncio.create_task(here.picker.stop(100))
        await asyncio.sleep(0)
        until.set()
        await stopping
        assert {status for status, _, _ in await asyncio.gather(*asking)} == {200}
        assert here.desk.picker.in_flight == {}


async def test_a_client_cannot_choose_its_endpoint(tmp_path):
    async with lab(tmp_path) as here:
        here.plan(health={"primary-1": EndpointHealth.DRAINING})
        other = f"127.0.0.1:{here.engines['primary-1'].port}"
        names = ("x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint-Subset", "test-epp-endpoint-selection",
                 "x-gateway-destination-endpoint-served")  # fmt: skip
        headers = [(name, other) for name in names for _ in range(2)]
        for _ in range(10):
            async with here.session.post(here.url + PATH, json=ASK, headers=headers) as answer:
                assert answer.status == 200
        assert not here.engines["primary-1"].received
        got = here.engines["primary-0"].received
        assert len(got) == 10
        for each in got:
            told = each.headers["x-gateway-destination-endpoint"]
            assert told.split(",")[0] == f"127.0.0.1:{here.engines['primary-0'].port}"
            assert other not in told


async def test_what_an_engine_says_of_the_model_is_not_passed_on(tmp_path):
    async with lab(tmp_path, scripted=True) as here:
        for each in here.engines.values():
            each.headers = {
                "x-served-model": "gpt-9",
                "x-model-downgraded": "true",
                "x-degrade-reason": "mood",
            }
        _, _, headers = await here.ask()
        assert headers["x-served-model"] == "chat"
        assert "x-model-downgraded" not in headers
        assert "x-degrade-reason" not in headers


@pytest.mark.parametrize("failure", ["reset", "refuses"])
async def test_an_error_of_the_gateway_is_nobodys_model(tmp_path, failure):
    async with lab(tmp_path, scripted=True) as here:
        for each in here.engines.values():
            each.mode = "reset"
            if failure == "refuses":
                await each.stop_listening()
        status, _, headers = await here.ask()
        assert status == 503
        assert "x-served-model" not in headers
        assert "x-model-downgraded" not in headers


@pytest.mark.parametrize(
    "http2",
    [
        {"hpack_table_size": 0},
        {"initial_stream_window_size": 65_535, "initial_connection_window_size": 65_535},
        {"max_concurrent_streams": 1},
        {"connection_keepalive": {"interval": "0.1s", "timeout": "5s"}},
    ],
    ids=["no table of headers", "small windows", "one stream", "pings"],
)
async def test_a_gateway_may_set_up_its_connection_as_it_likes(tmp_path, http2):
    async with lab(tmp_path, http2=http2) as here:
        body: dict[str, Any] = {"model": "chat", "messages": "x" * 400_000}
        for _ in range(3):
            answers = await asyncio.gather(*(here.ask(body) for _ in range(10)))
            assert [(status, len(got)) for status, got, _ in answers] == [
                (200, len(json.dumps(body)))
            ] * 10
            await asyncio.sleep(0.2)  # some pings come and go
        assert here.desk.tally.count("fleet_picker_refusals_total", "", "bad_message") == 0
