"""What a real Envoy reads from bodies of every kind."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import pytest
import pytest_asyncio
from envoy.extensions.filters.http.lua.v3 import (
    lua_pb2,  # noqa: F401 - MessageToDict finds it by name
)
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,  # noqa: F401
)
from google.protobuf.json_format import MessageToDict

from tests.fakes.envoy import running_envoy
from xds_server.resources.bodies.request_facts import STREAM, Fact, Reading, facts_filters, merge
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES
from xds_server.resources.headers import add
from xds_server.resources.names import METADATA
from xds_server.resources.proto import Listener, to_upb, typed
from xds_server.resources.static.static_tier import filter_chains, router

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

LIMITING = (
    STREAM,
    Reading(fact=Fact.MODEL, missing="(missing)", error="(error)", any_content_type=True),
    Reading(fact=Fact.MAX_TOKENS, missing=512, error=-1),
    Reading(fact=Fact.MAX_COMPLETION_TOKENS),
)
MISSING = {"model": "(missing)", "max_tokens": 512}
ERROR = {"model": "(error)", "max_tokens": -1}

BODIES = {
    "all facts": (
        b'{"model": "m", "stream": true, "max_tokens": 5, "max_completion_tokens": 6}',
        {"model": "m", "stream": True, "max_tokens": 5, "max_completion_tokens": 6},
    ),
    "other keys only": (b'{"prompt": "x"}', MISSING),
    "nested before": (b'{"x": {"model": "in"}, "model": "m"}', MISSING | {"model": "m"}),
    "nested after": (b'{"model": "m", "x": {"model": "in"}}', MISSING | {"model": "m"}),
    "nested only": (b'{"x": [{"model": "in", "max_tokens": 1}]}', MISSING),
    "null": (b'{"model": null, "max_tokens": null, "stream": null}', MISSING),
    "lists and mappings": (b'{"model": ["m"], "max_tokens": {"a": 1}}', MISSING),
    "numbers and text swapped": (
        b'{"model": 5, "max_tokens": "7", "stream": "true"}',
        {"model": 5, "max_tokens": "7", "stream": True},
    ),
    "the last of a repeated key, as engines do": (
        b'{"model": "a", "model": "b", "max_tokens": 1, "max_tokens": 9999}',
        {"model": "b", "max_tokens": 9999},
    ),
    "an escaped key": (b'{"\\u006dodel": "m"}', MISSING | {"model": "m"}),
    "an escaped value": (b'{"model": "\\u00fc"}', MISSING | {"model": "ü"}),
    "text of no length": (b'{"model": ""}', MISSING | {"model": ""}),
    "negative": (b'{"max_tokens": -5}', MISSING | {"max_tokens": -5}),
    "an exponent": (b'{"max_tokens": 1.5e3}', MISSING | {"max_tokens": 1500}),
    "endless digits": (b'{"max_tokens": 1%s}' % (b"0" * 30), MISSING | {"max_tokens": 1e30}),
    "a byte order mark": (b'\xef\xbb\xbf{"model": "m"}', MISSING | {"model": "m"}),
    "a very long model": (b'{"model": "%s"}' % (b"x" * 20_000), ERROR),
    "no body": (b"", MISSING),
    "a list": (b'[{"model": "m"}]', ERROR),
    "a number": (b"5", ERROR),
    "cut short": (b'{"model": "m"', ERROR),
    "more after the end": (b'{"model": "m"} x', ERROR),
    "a comment": (b'{"model": "m" /* x */}', ERROR),
    "blanks": (b"  ", ERROR),
    "not UTF-8": (b'{"model": "\xff"}', ERROR),
    "half a surrogate pair": (b'{"model": "\\ud800"}', ERROR),
    "UTF-16": ('{"model": "m"}'.encode("utf-16"), ERROR),
    "not a number": (b'{"max_tokens": NaN}', ERROR),
    "beyond a double": (b'{"max_tokens": 1e999}', ERROR),
    "not a number, elsewhere": (b'{"model": "m", "x": NaN}', MISSING | {"model": "m"}),
    "a very deep list": (
        b'{"model": "m", "x": %s}' % (b"[" * 20_000 + b"]" * 20_000),
        MISSING | {"model": "m"},
    ),
    "five megabytes": (
        b'{"prompt": "%s", "model": "m"}' % (b"x" * 5_000_000),
        MISSING | {"model": "m"},
    ),
}

CONTENT_TYPES = ["text/plain", "application/json; charset=latin-1", "multipart/form-data", ""]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ask(tmp_path_factory):
    r = typed.route
    shown = r.Route(
        match=r.RouteMatch(prefix="/"),
        direct_response=r.DirectResponseAction(status=200),
        response_headers_to_add=[add("x-facts", f"%DYNAMIC_METADATA({METADATA})%")],
    )
    listeners = []
    for name, readings in (("limiting", LIMITING), ("streaming", (STREAM,))):
        manager = typed.hcm.HttpConnectionManager(
            stat_prefix=name,
            route_config=r.RouteConfiguration(
                virtual_hosts=[r.VirtualHost(name="all", domains=["*"], routes=[shown])]
            ),
            http_filters=[*facts_filters(merge(readings)), router()],
        )
        address = typed.core.SocketAddress(address="127.0.0.1", port_value=0)
        listener = typed.listener.Listener(
            name=name,
            address=typed.core.Address(socket_address=address),
            per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES,
            filter_chains=filter_chains(manager),
        )
        listeners.append(
            MessageToDict(to_upb(Listener, listener), preserving_proto_field_name=True)
        )
    bootstrap = {"static_resources": {"listeners": listeners}}
    directory = tmp_path_factory.mktemp("facts")
    async with running_envoy(bootstrap, directory) as envoy, aiohttp.ClientSession() as session:
        ports = {name: await envoy.listener_port(name) for name in ("limiting", "streaming")}

        async def ask(body, content_type="application/json", listener="limiting"):
            url = f"http://127.0.0.1:{ports[listener]}/"
            headers = {"content-type": content_type}
            data = io.BytesIO(body) if isinstance(body, bytes) else body
            async with session.post(url, data=data, headers=headers) as response:
                return response.status, json.loads(response.headers.get("x-facts") or "null")

        yield ask


@pytest.mark.parametrize(("body", "facts"), BODIES.values(), ids=BODIES.keys())
async def test_the_facts_of_a_body(ask, body, facts):
    assert await ask(body) == (200, facts)


async def test_a_body_in_pieces_is_read_whole(ask):
    async def pieces():
        for piece in (b'{"mo', b'del":"', b'm"}'):
            yield piece
            await asyncio.sleep(0)

    assert await ask(pieces()) == (200, MISSING | {"model": "m"})


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
async def test_no_content_type_hides_a_body_from_limits(ask, content_type):
    status, facts = await ask(b'{"model": "m", "max_tokens": 9}', content_type)
    assert (status, facts) == (200, {"model": "m", "max_tokens": 9})


async def test_for_streams_alone_only_json_is_read(ask):
    body = b'{"stream": true}'
    assert await ask(body, listener="streaming") == (200, {"stream": True})
    charset = "application/json; charset=utf-8"
    assert await ask(body, charset, listener="streaming") == (200, {"stream": True})
    assert await ask(body, "text/plain", listener="streaming") == (200, None)


async def test_a_body_above_the_limit_is_refused(ask):
    assert await ask(b"x" * (BUFFER_LIMIT_BYTES + 1_000_000)) == (413, None)
