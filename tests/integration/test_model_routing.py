"""Several models behind one listener, domain and prefix, told apart by the body."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.fakes.plans import a_model, a_static_tier, a_topology
from tests.fakes.routing_lab import routing_lab, running_tiers
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.policy import FailurePolicy
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

PLAIN = FailurePolicy(answer_timeout_s=None)


@asynccontextmanager
async def lab_of(tmp_path, models, *, lists_models=True, **settings):
    """Run a lab of models given as name -> changes; each has one engine that serves its name."""
    async with AsyncExitStack() as stack:
        made = []
        for name, changes in models.items():
            tiers = await stack.enter_async_context(
                running_tiers([ScriptedEngine(f"engine-{name}")], prefix=name)
            )
            made.append(replace(a_model(name, tiers=[*tiers, a_static_tier()]), **changes))
        topology = replace(a_topology(*made), lists_models=lists_models)
        yield await stack.enter_async_context(routing_lab(tmp_path, topology, **settings))


TWO = {
    "large": {"names": ("gpt-large", "Größe/✓")},
    "small": {"names": ("gpt-small", 'say "hi"', "100%")},
}

BODIES = {
    "a name": ({"model": "gpt-large"}, "engine-large"),
    "another model's": ({"model": "gpt-small"}, "engine-small"),
    "an alias in unicode": ({"model": "Größe/✓"}, "engine-large"),
    "an alias with quotes": ({"model": 'say "hi"'}, "engine-small"),
    "an alias with a percent sign": ({"model": "100%"}, "engine-small"),
    "streaming": ({"model": "gpt-small", "stream": True}, "engine-small"),
    "escaped": (b'{"model": "gpt-\\u006carge"}', "engine-large"),
    "after a nested one": (b'{"x": {"model": "gpt-small"}, "model": "gpt-large"}', "engine-large"),
    "the last of two": (b'{"model": "gpt-small", "model": "gpt-large"}', "engine-large"),
}


@pytest.mark.parametrize("failures", [PLAIN, FailurePolicy()], ids=["one route", "two routes"])
@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
async def test_the_body_chooses_the_model(tmp_path, failures, capability):
    async with lab_of(tmp_path, TWO, failures=failures, capability=capability) as lab:
        for what, (body, served) in BODIES.items():
            answer = await lab.ask(body)
            assert (answer.status, answer.served) == (200, served), what
        answer = await lab.ask({"model": "gpt-large"}, content_type="text/plain")
        assert answer.served == "engine-large", "engines do not look at it either"
        await lab.assert_all_accepted()


ODD_NAMES = (
    "a/b/c", "a b", "\U0001f999", "\\", '"', "'", "a\tb", "ß" * 256, "x" * 256, "{}", "null", "true", "5", "%", "%%",
    "%REQ(host)%", "a,b", "\u00e9", "e\u0301", "\u2028", "model", "..", "\x7f", "\ufeff", "$", "[1]", "/", "\\u0061",
)  # fmt: skip


async def test_names_of_every_kind_are_told_apart(tmp_path):
    models = {"even": {"names": ODD_NAMES[::2]}, "odd": {"names": ODD_NAMES[1::2]}}
    async with lab_of(tmp_path, models) as lab:
        for index, name in enumerate(ODD_NAMES):
            expected = f"engine-{('even', 'odd')[index % 2]}"
            for ascii_only in (True, False):
                body = json.dumps({"n": 1, "model": name}, ensure_ascii=ascii_only).encode()
                assert (await lab.ask(body)).served == expected, (name, ascii_only)
        listed = await lab.ask(method="GET", path="/v1/models")
        assert {each["id"] for each in listed.document["data"]} == set(ODD_NAMES)
        await lab.assert_all_accepted()


UNKNOWN = {
    "unknown": ({"model": "gpt-5"}, "gpt-5"),
    "another case": ({"model": "GPT-large"}, "GPT-large"),
    "in quotes": ({"model": 'a"b\n%REQ(host)%'}, 'a"b\n%REQ(host)%'),
    "empty": ({"model": ""}, ""),
    "unicode": ({"model": "ü✓"}, "ü✓"),
}
UNREADABLE = {
    "no model": {"messages": []},
    "null": {"model": None},
    "a list": {"model": ["gpt-large"]},
    "no JSON": b"model=gpt-large",
    "nothing": b"",
}


async def test_unknown_models_get_an_error_that_openai_clients_know(tmp_path):
    async with lab_of(tmp_path, TWO) as lab:
        for what, (body, name) in UNKNOWN.items():
            answer = await lab.ask(body)
            assert answer.status == 404, what
            assert answer.document == {
                "error": {
                    "message": f"The model `{name}` does not exist.",
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": "model_not_found",
                }
            }
            assert "connection" not in answer.headers, "the connection stays open"
        for what, body in UNREADABLE.items():
            answer = await lab.ask(body)
            assert answer.status == 400, what
            error = answer.document["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", "model")
        assert (await lab.ask({"model": False})).status == 400
        for method in ("GET", "DELETE", "PUT"):
            answer = await lab.ask(path="/v1/files/5", method=method)
            assert (answer.status, "names it" in answer.document["error"]["message"]) == (404, True)
        assert (await lab.ask(path="/elsewhere")).status == 404
        await lab.assert_all_accepted()


TUNNELS = {
    "a WebSocket": b"GET /v1/realtime HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: websocket",
    "a browser's": b"GET /v1/realtime HTTP/1.1\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket",
    "by POST": b"POST /v1/realtime HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 9",
    "CONNECT": b"CONNECT engine:80 HTTP/1.1",
}


async def test_what_opens_a_tunnel_is_refused_and_not_waited_for(tmp_path):
    async with lab_of(tmp_path, TWO) as lab:
        for what, head in TUNNELS.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
            writer.write(head + b"\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(30):
                assert b" 403 " in await reader.readline(), what
            writer.close()
            await writer.wait_closed()
        offer = {
            "connection": "upgrade, http2-settings",
            "upgrade": "h2c",
            "http2-settings": "AAMA",
        }
        answer = await lab.ask({"model": "gpt-small"}, **offer)
        assert (answer.status, answer.served) == (200, "engine-small"), "Java's client offers that"


async def test_many_early_answers_need_one_connection(tmp_path):
    async with lab_of(tmp_path, TWO) as lab:
        before = await lab.envoy.stat("http.llm.downstream_cx_total")
        for _ in range(50):
            assert (await lab.ask({"model": "x", "prompt": "y" * 20_000})).status == 404
        assert await lab.envoy.stat("http.llm.downstream_cx_total") - before <= 1


async def test_older_proxies_do_not_name_the_unknown_model(tmp_path):
    async with lab_of(tmp_path, TWO, capability=Capability.AGGREGATE) as lab:
        answer = await lab.ask({"model": "gpt-5"})
        assert answer.status == 404
        assert answer.document["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "default",
    [{}, {"names": ("other", "alias"), "is_default": True}],
    ids=["without names", "with names"],
)
async def test_a_default_takes_the_rest(tmp_path, default):
    models = {"other": default, "large": {"names": ("gpt-large",)}}
    async with lab_of(tmp_path, models) as lab:
        assert (await lab.ask({"model": "gpt-large"})).served == "engine-large"
        for what, (body, _) in UNKNOWN.items():
            assert (await lab.ask(body)).served == "engine-other", what
        for what, body in UNREADABLE.items():
            answer = await lab.ask(body)
            # Bodies that cannot be rewritten for its engine are refused on the way to it.
            assert answer.served == "engine-other" or "must be a JSON object" in answer.text, what
        await lab.assert_all_accepted()


async def test_a_default_of_a_shorter_prefix_takes_the_rest_too(tmp_path):
    models = {
        "wide": {"prefix": "/"},
        "large": {"names": ("gpt-large",)},
        "deep": {"names": ("gpt-large",), "prefix": "/v1/deep/"},
    }
    async with lab_of(tmp_path, models) as lab:
        assert (await lab.ask({"model": "gpt-large"})).served == "engine-large"
        assert (await lab.ask({"model": "x"})).served == "engine-wide"
        deep = await lab.ask({"model": "gpt-large"}, path="/v1/deep/chat/completions")
        assert deep.served == "engine-deep"
        deep = await lab.ask({"model": "x"}, path="/v1/deep/chat/completions")
        assert deep.served == "engine-wide"


async def test_weights_of_models_that_share_a_prefix_move_apart(tmp_path):
    async with lab_of(tmp_path, TWO) as lab:
        plan = lab.plan([0, 1000])

        async def moved():
            return (await lab.ask({"model": "gpt-large"})).served == "static"

        await lab.envoy.until(moved)
        first = lab.plan([1000, 0]).models[0]
        lab.push(replace(plan, models=(first, plan.models[1])))

        async def is_back():
            return (await lab.ask({"model": "gpt-large"})).served == "engine-large"

        await lab.envoy.until(is_back)
        assert (await lab.ask({"model": "gpt-small"})).served == "static"


async def test_proxies_list_the_models(tmp_path):
    models = TWO | {"code": {"prefix": "/code/v1/"}, "far": {"domains": ("far.example",)}}
    async with lab_of(tmp_path, models) as lab:
        listed = await lab.ask(method="GET", path="/v1/models")
        assert listed.status == 200
        assert listed.document["object"] == "list"
        entries = {each["id"]: each for each in listed.document["data"]}
        names = [*TWO["large"]["names"], *TWO["small"]["names"]]
        assert list(entries) == sorted(names)
        for name in names:
            one = await lab.ask(method="GET", path=f"/v1/models/{quote(name)}")
            assert (one.status, one.document) == (200, entries[name]), name
            assert one.document["object"] == "model"
        slash = await lab.ask(method="GET", path="/v1/models/Gr%C3%B6%C3%9Fe%2F%E2%9C%93")
        assert slash.document["id"] == "Größe/✓"
        missing = await lab.ask(method="GET", path="/v1/models/gpt-5")
        assert missing.status == 404
        assert missing.document["error"]["code"] == "model_not_found"
        for path, status in (("", 200), ("/gpt-large", 200), ("/gpt-5", 404)):
            shown = await lab.ask(method="GET", path=f"/v1/models{path}")
            head = await lab.ask(method="HEAD", path=f"/v1/models{path}")
            assert (head.status, head.text) == (status, "")
            for name in ("content-type", "content-length"):
                assert head.headers[name] == shown.headers[name], path
        queried = await lab.ask(method="GET", path="/v1/models?limit=1")
        assert queried.document == listed.document
        code = await lab.ask(method="GET", path="/code/v1/models")
        assert [each["id"] for each in code.document["data"]] == ["code"]
        far = await lab.ask(method="GET", path="/v1/models", host="far.example")
        assert [each["id"] for each in far.document["data"]] == ["far"]
        assert (await lab.ask({"model": "gpt-large"}, path="/v1/models")).served == "engine-large"
        await lab.assert_all_accepted()


async def test_a_list_longer_than_envoys_limit_is_whole(tmp_path):
    names = tuple(f"organization/model-{number:03}" for number in range(200))
    async with lab_of(tmp_path, {"many": {"names": names}}) as lab:
        listed = await lab.ask(method="GET", path="/v1/models")
        assert [each["id"] for each in listed.document["data"]] == list(names)
        one = await lab.ask(method="GET", path="/v1/models/organization/model-199")
        assert one.document["id"] == "organization/model-199"
        assert (await lab.ask({"model": names[-1]})).served == "engine-many"
        await lab.assert_all_accepted()


async def test_the_list_can_be_left_to_engines(tmp_path):
    async with lab_of(tmp_path, {"chat": {}}, lists_models=False) as lab:
        answer = await lab.ask(method="GET", path="/v1/models")
        assert answer.served == "engine-chat"
