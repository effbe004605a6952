"""What clients read where a real Envoy answers by itself: OpenAI's errors, with headers that are true."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import pytest

from tests.fakes.answer import CHAT, Answer
from tests.fakes.plans import a_model, a_static_tier, a_topology
from tests.fakes.routing_lab import RoutingLab, routing_lab, running_tiers
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.limits import Limit
from xds_server.core.policy import FailurePolicy
from xds_server.resources.capability import Capability
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES

pytestmark = pytest.mark.envoy

OFF = FailurePolicy(static_on_5xx=False, header_timeout_s=0.5, answer_timeout_s=None)
TOO_LARGE = b'{"prompt": "%s"}' % (b"x" * (BUFFER_LIMIT_BYTES + 2_000_000))

RAW = {
    "no such path": (b"GET /elsewhere HTTP/1.1\r\nhost: x", 404, "not_found"),
    "no such path, by HTTP/1.0": (b"GET /v1/models HTTP/1.0\r\nhost: x", 426, None),
    "no host": (b"GET /v1/models HTTP/1.1\r\nx: y", 400, None),
    "a line that is no request": (b"HELLO", 400, None),
    "two lengths": (
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2",
        400,
        None,
    ),
    "an unknown transfer encoding": (
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: what",
        501,
        None,
    ),
    "headers of 100 KB": (
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100_000,
        431,
        "headers_too_large",
    ),
    "a WebSocket": (
        b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket",
        403,
        None,
    ),
}


async def raw(port: int, head: bytes) -> Answer:
    """Send a head as it is; return what comes back, which must be one answer that says its length."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"\r\n\r\n")
    async with asyncio.timeout(30):
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines if line)
        text = (await reader.readexactly(int(fields["content-length"]))).decode()
    writer.close()
    return Answer(int(start.split()[1]), text, fields)


async def too_large(lab: RoutingLab) -> Answer:
    url, data = f"http://127.0.0.1:{lab.port}{CHAT}", io.BytesIO(TOO_LARGE)
    async with lab.session.post(url, data=data) as response:
        return await Answer.of(response)


def assert_is_an_error(
    answer: Answer, *, status: int, code: str | None, served: str | None = None
) -> None:
    assert answer.status == status, answer
    error = answer.document["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    ours = status >= 500 and status != 501
    assert error["type"] == ("server_error" if ours else "invalid_request_error")
    assert error["code"] == code
    assert error["message"].endswith(".")
    assert answer.served == served
    assert "x-static-template" not in answer.headers


@pytest.mark.parametrize("reads_bodies", [False, True], ids=["plain", "reads bodies"])
async def test_what_envoy_refuses_is_an_error_of_openais(tmp_path, reads_bodies):
    async with running_tiers([ScriptedEngine("big")]) as tiers:
        model = a_model(tiers=[*tiers, a_static_tier()])
        if reads_bodies:
            model = replace(model, names=("gpt",))
        async with routing_lab(tmp_path, a_topology(model)) as lab:
            for what, (head, status, code) in RAW.items():
                answer = await raw(lab.port, head)
                assert_is_an_error(answer, status=status, code=code)
                closes = what != "no such path"
                assert ("connection" in answer.headers) == closes, what
            head = await lab.ask(method="HEAD", path="/elsewhere")
            assert (head.status, head.text) == (404, "")
            await lab.assert_all_accepted()


@pytest.mark.parametrize("where", ["names", "limits", "rewriting", "static"])
async def test_a_body_that_is_too_large_is_told_so_wherever_it_is_read(tmp_path, where):
    async with running_tiers([ScriptedEngine("chat" if where == "static" else "big")]) as tiers:
        model = a_model(tiers=[*tiers, a_static_tier()])
        if where == "names":
            model = replace(model, names=("chat",))
        elif where == "limits":
            model = replace(model, limit=Limit(tokens_per_second=1e6))
        split = [0, 1000] if where == "static" else None
        failures = replace(OFF, static_on_5xx=True)
        async with routing_lab(tmp_path, a_topology(model), split=split, failures=failures) as lab:
            answer = await too_large(lab)
            served = "static" if where == "static" else None
            assert_is_an_error(answer, status=413, code="request_too_large", served=served)
            assert (await lab.ask({"model": "chat"})).status == 200
            await lab.assert_all_accepted()


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
@pytest.mark.parametrize("entered", ["directly", "by a gate"])
async def test_without_a_static_answer_a_failure_is_an_error_of_openais(
    tmp_path, entered, capability
):
    engine, gated = ScriptedEngine("big"), entered == "by a gate"
    limit = Limit(concurrency=1000) if gated else Limit()
    async with running_tiers([engine]) as (tier,):
        topology = a_topology(a_model(tiers=[replace(tier, limit=limit)]))
        async with routing_lab(tmp_path, topology, failures=OFF, capability=capability) as lab:
            # A gate says 502: a 503 would be an engine's word for a full queue. It is an endpoint of its tier to the proxy,
            # which names the tier.
            gone = {"status": 502 if gated else 503, "served": "big" if gated else None}
            engine.mode = "reset"
            assert_is_an_error(await lab.ask(), code="unavailable", **gone)
            engine.mode = "hang"
            late = gone | {"status": 504}
            assert_is_an_error(await lab.ask(), code="timeout", **late)
            await engine.stop_listening()
            for _ in range(5):  # refused at first, then ejected
                answer = await lab.ask()
                assert_is_an_error(answer, code="unavailable", **gone)
                assert gated or answer.headers["retry-after"] == "5"
            await lab.assert_all_accepted()


async def test_the_last_net_and_honest_errors_say_what_they_said(tmp_path):
    engine = ScriptedEngine("big")
    async with running_tiers([engine]) as tiers:
        topology = a_topology(a_model(tiers=[*tiers, a_static_tier()]))
        failures = replace(OFF, static_on_5xx=True)
        async with routing_lab(tmp_path, topology, failures=failures) as lab:
            await engine.stop_listening()
            for _ in range(5):
                answer = await lab.ask()
                assert (answer.status, answer.served) == (200, "static")
                honest = await lab.ask(x_no_fallback="true")
                assert (honest.status, honest.reason) == (503, "fault")
                assert honest.document["error"]["code"] == "fault"
                assert honest.headers["retry-after"] == "5"
