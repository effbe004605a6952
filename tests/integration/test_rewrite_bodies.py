"""Bodies of every kind on their way through a real Envoy: rewritten right, refused right, or left alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_static_tier, a_tier, a_topology
from tests.fakes.rewrite_reference import Rules, expected
from tests.fakes.rewriting import echo_engines, refusal_of, rewriting_proxy
from xds_server.core.model import MaxTokens
from xds_server.resources.bodies.rewrite import HEADER

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

SERVES = 'served "by"\\ 8ü'
RULES = {
    "named": Rules(serves=SERVES),
    "short": Rules(serves=SERVES, scale="0.29", floor=16),
    "filled": Rules(serves=SERVES, scale="0.5", floor=16, when_absent=512),
    "own": Rules(scale="0.5", floor=16, when_absent=512),
}
"""By the first part of the path; `own` serves what clients call it."""

BIG = "123456789012345678901234567890"
BODIES = {
    "model first": b'{"model":"chat","n":1}',
    "model last": b'{"n":1,"model":"chat"}',
    "model alone": b'{"model":"chat"}',
    "no model": b'{"messages":[]}',
    "an empty object": b"{}",
    "an empty object with blanks": b" \t\r\n{ \n } \n",
    "an empty name": b'{"model":""}',
    "the name that is served": json.dumps({"model": SERVES}).encode(),
    "the same name, written otherwise": json.dumps({"model": SERVES}, ensure_ascii=False).encode(),
    "a name with quotes": rb'{"model":"a\"b\\","n":1}',
    "a name with backslashes at its end": rb'{"model":"a\\\\","max_tokens":100}',
    "a name with an escaped quote at its end": rb'{"model":"a\\\"","max_tokens":100}',
    "a name that looks like a member": rb'{"model":"\",\"model\":\"x","n":1}',
    "blanks everywhere": b' { "model" : "chat" , "max_tokens" : 100 , "n" : [ 1 , 2 ] } ',
    "tabs and line ends": b'\n{\r\n\t"model"\t:\n"chat"\r,\n"max_tokens"\t:\n100\r}\n',
    "twice": b'{"model":"a","model":"b","max_tokens":100,"max_tokens":200}',
    "three times and escaped": rb'{"model":"a","\u006dodel":"b","model":"c"}',
    "an escaped key": rb'{"\u006d\u006F\u0064\u0065\u006c":"chat"}',
    "an escaped limit": rb'{"max\u005ftokens":100,"max_completion\u005Ftokens":300}',
    "a key that is escaped twice": rb'{"\\u006dodel":"chat"}',
    "a key with an escaped backslash": rb'{"\u005cmodel":"chat"}',
    "keys that only look alike": b'{"Model":"a","models":"b","mode":"c","model ":"d","xmodel":"e"}',
    "a key with a line end": rb'{"model\n":"chat","\tmodel":"x"}',
    "an empty key": b'{"":"chat","model":"x"}',
    "a very long key": b'{"%s":1,"model":"x"}' % (b"model" * 5000),
    "a nested model before": b'{"x":{"model":"in","max_tokens":100},"model":"chat"}',
    "a nested model after": b'{"model":"chat","x":[{"model":"in"},{"max_tokens":100}]}',
    "a nested model only": b'{"x":{"model":"in","max_tokens":100}}',
    "a model in text": rb'{"prompt":"say {\"model\":\"x\"}","model":"chat"}',
    "brackets in text": rb'{"a":"}]{[","b":["]}"],"c":{"d":"}"},"model":"chat"}',
    "quotes in nested text": rb'{"a":["\"","\\\"",{"b\"}":"\\"}],"model":"chat"}',
    "big integers": f'{{"seed":{BIG},"model":"chat","x":[{BIG},-{BIG}]}}'.encode(),
    "numbers of every form": b'{"a":-0,"b":1.50,"c":1E+2,"d":1e-400,"e":0.10,"model":"chat"}',
    "words": b'{"a":true,"b":false,"c":null,"model":"chat"}',
    "unicode": '{"prompt":"Grüße, 世界 🚀 \u2028","ключ":"значение","model":"chat"}'.encode(),
    "surrogate pairs": rb'{"prompt":"\ud83d\ude80","model":"\ud83d\ude80"}',
    "half a surrogate pair": rb'{"prompt":"\ud83d","model":"chat"}',
    "a byte order mark": b'\xef\xbb\xbf{"model":"chat","max_tokens":100}',
    "a byte order mark and nothing": b"\xef\xbb\xbf{}",
    "nothing but nesting": b'{"a":%s1%s,"model":"chat"}' % (b"[" * 500, b"]" * 500),
    "slashes": rb'{"model":"\/chat\/","a":"\/"}',
    "control characters in text": b'{"prompt":"a\x01b\tc","model":"chat"}',
    "NUL in text": b'{"prompt":"a\x00b","model":"chat\x00"}',
    "not UTF-8 in text": b'{"prompt":"\xff\xfe","model":"\xff"}',
    "NaN and Infinity, which Python reads": b'{"a":NaN,"b":-Infinity,"model":"chat"}',
    # limits
    "a limit": b'{"max_tokens":100}',
    "both limits": b'{"max_tokens":1000,"max_completion_tokens":2001,"model":"chat"}',
    "a limit at the floor": b'{"max_tokens":16,"max_completion_tokens":17}',
    "a limit below the floor": b'{"max_tokens":3}',
    "a limit just above the floor": b'{"max_tokens":31,"max_completion_tokens":33}',
    "a limit of nothing": b'{"max_tokens":0}',
    "a limit that is not quite a double's": b'{"max_tokens":10000}',
    "a fraction as a limit": b'{"max_tokens":100.5}',
    "a fraction that no double has": b'{"max_tokens":200000000000000.01}',
    "a limit with a point": b'{"max_tokens":100.0}',
    "a limit with an exponent": b'{"max_tokens":1e3,"max_completion_tokens":12.5E1}',
    "a limit in quotes": b'{"max_tokens":"100","max_completion_tokens":" +1_000 "}',
    "a limit in escaped quotes": rb'{"max_tokens":"\u0031\u003000"}',
    "a limit in quotes with a point": b'{"max_tokens":"100.0"}',
    "a word as a limit": b'{"max_tokens":"many"}',
    "a hexadecimal word as a limit": b'{"max_tokens":"0x100"}',
    "no word as a limit": b'{"max_tokens":""}',
    "null as a limit": b'{"max_tokens":null,"model":"chat"}',
    "both limits null": b'{"max_tokens":null,"a":1,"max_completion_tokens":null}',
    "one limit null": b'{"max_tokens":null,"max_completion_tokens":100}',
    "a negative limit": b'{"max_tokens":-1}',
    "a limit, then null": b'{"max_tokens":100,"max_tokens":null}',
    "null, then a limit": b'{"max_tokens":null,"max_tokens":100}',
    "true as a limit": b'{"max_tokens":true}',
    "a list as a limit": b'{"max_tokens":[100]}',
    "an object as a limit": b'{"max_tokens":{"max_tokens":100}}',
    "a huge limit": b'{"max_tokens":12345678901234567890}',
    "a limit beyond a double": b'{"max_tokens":1e999}',
    "a limit in the middle of blanks": b'{ "a" : 1 , "max_tokens" :\t1000\n, "b" : 2 }',
    # what cannot be read
    "not JSON": b"model=chat",
    "a form": b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nchat\r\n--x--',
    "blanks only": b" \n ",
    "a list": b'[{"model":"chat"}]',
    "a string": b'"model"',
    "a number": b"5",
    "null": b"null",
    "UTF-16": '{"model":"chat"}'.encode("utf-16"),
    "UTF-16 without a mark": '{"model":"chat"}'.encode("utf-16-le"),
    "UTF-32": '{"model":"chat"}'.encode("utf-32"),
    "compressed": b"\x1f\x8b\x08\x00model",
    "two objects": b'{"model":"chat"}{"model":"x"}',
    "more after the end": b'{"model":"chat"}x',
    "NUL after the end": b'{"model":"chat"}\x00',
    "one brace too many": b'{"model":"chat"}}',
    "cut in a key": b'{"mod',
    "cut after a key": b'{"model"',
    "cut after a colon": b'{"model":',
    "cut in a name": b'{"model":"ch',
    "cut after an escape": b'{"model":"ch\\',
    "cut after a name": b'{"model":"chat"',
    "cut after a comma": b'{"model":"chat",',
    "cut in a list": b'{"model":"chat","x":[1,2',
    "only a brace": b"{",
    "a comma at the end": b'{"model":"chat",}',
    "a comma at the start": b'{,"model":"chat"}',
    "two commas": b'{"model":"chat",,"n":1}',
    "no comma": b'{"model":"chat" "n":1}',
    "no colon": b'{"model" "chat"}',
    "no value": b'{"model":,"n":1}',
    "single quotes": b"{'model':'chat'}",
    "no quotes": b"{model:chat}",
    "a comment": b'{/* x */"model":"chat"}',
    "a comment after a value": b'{"model":"chat"/* x */}',
    "a form feed": b'{\x0c"model":"chat"}',
    "a wide blank": b'{\xc2\xa0"model":"chat"}',
    "a number as a name": b'{"model":5}',
    "null as a name": b'{"model":null}',
    "a list as a name": b'{"model":["chat"]}',
    "an object as a name": b'{"model":{"model":"chat"}}',
    "a name, then a number": b'{"model":"chat","model":5}',
}  # fmt: skip


def topology_for(port):
    def model(name, rules):
        short = None
        if rules.scale is not None:
            short = MaxTokens(
                scale=float(rules.scale), floor=rules.floor, when_absent=rules.when_absent
            )
        engine = replace(a_tier("primary", rules.serves or name, [port]), max_tokens=short)
        return a_model(name, tiers=[engine, a_static_tier()], prefix=f"/{name}/")

    return a_topology(*(model(name, rules) for name, rules in RULES.items()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    async with echo_engines(1) as (engine,):
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(tmp_path_factory, engine):
    directory = tmp_path_factory.mktemp("rewriting")
    async with rewriting_proxy(directory, topology_for(engine.port)) as proxy:
        yield proxy
        await proxy.assert_all_accepted()


async def assert_rewritten(proxy, route, body):
    wanted = expected(body, RULES[route])
    reply = await proxy.ask(f"/{route}/v1/chat/completions", body)
    if wanted is None:
        assert (reply.status, refusal_of(reply)) == (400, "invalid_body")
    else:
        assert (reply.status, reply.body) == (200, wanted)


@pytest.mark.parametrize("route", RULES)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_body_arrives_as_the_tier_wants_it(proxy, route, body):
    await assert_rewritten(proxy, route, body)


def escaped(text, choices):
    """Write a string as JSON, each character plainly or escaped as the choices say."""
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n", "\t": "\\t"}
    written = []
    for index, character in enumerate(text):
        choice = choices[index % len(choices)]
        if choice and ord(character) < 0x10000:
            written.append(f"\\u{ord(character):0{4}{'x' if choice == 1 else 'X'}}")
        elif character in short and (choice or character in '"\\'):
            written.append(short[character])
        elif ord(character) < 0x20:
            written.append(f"\\u{ord(character):04x}")
        else:
            written.append(character)
    return '"' + "".join(written) + '"'


BLANKS = st.text(" \t\r\n", max_size=2)
CHOICES = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=7)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text('{}[]",:\\ model', max_size=12),
)
STRINGS = st.builds(escaped, TEXTS, CHOICES)
NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(0, 5000).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,8})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
SCALARS = st.one_of(STRINGS, NUMBERS, st.sampled_from(["true", "false", "null"]))
KEYS = st.one_of(
    st.builds(
        escaped, st.sampled_from(["model", "max_tokens", "max_completion_tokens", "n"]), CHOICES
    ),
    STRINGS,
)


def object_of(members, blanks):
    inner = ",".join(
        f"{blanks[i % len(blanks)]}{key}{blanks[(i + 1) % len(blanks)]}:{blanks[(i + 2) % len(blanks)]}"
        f"{value}{blanks[(i + 3) % len(blanks)]}"
        for i, (key, value) in enumerate(members)
    )
    return f"{{{inner or blanks[0]}}}"


SPACES = st.lists(BLANKS, min_size=1, max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(object_of, st.lists(st.tuples(KEYS, inner), max_size=4), SPACES),
        st.lists(inner, max_size=4).map(lambda values: f"[{', '.join(values)}]"),
    ),
    max_leaves=12,
)
MEMBERS = st.one_of(
    st.tuples(KEYS, VALUES),
    st.tuples(st.just('"model"'), STRINGS),
    st.tuples(st.sampled_from(['"max_tokens"', '"max_completion_tokens"']), NUMBERS),
)
DOCUMENTS = st.builds(
    lambda before, body, after: f"{before}{body}{after}".encode(),
    BLANKS,
    st.builds(object_of, st.lists(MEMBERS, max_size=7), SPACES),
    BLANKS,
)
through_envoy = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@settings(through_envoy, max_examples=300)
@given(route=st.sampled_from(list(RULES)), body=DOCUMENTS)
async def test_any_object_arrives_as_the_tier_wants_it(proxy, route, body):
    json.loads(body)
    await assert_rewritten(proxy, route, body)


@settings(through_envoy, max_examples=300)
@given(
    body=DOCUMENTS,
    at=st.integers(0, 10_000),
    length=st.integers(0, 3),
    instead=st.one_of(
        st.binary(max_size=3), st.sampled_from([b'"', b"\\", b"{", b"}", b",", b":"])
    ),
)
@example(body=b'{"model":"chat"}', at=8, length=0, instead=b"\\")
async def test_a_damaged_body_is_refused_or_keeps_every_byte_but_the_names(
    proxy, body, at, length, instead
):
    at %= len(body) + 1
    damaged = body[:at] + instead + body[at + length :]
    wanted = expected(damaged, RULES["named"])
    reply = await proxy.ask("/named/v1/chat/completions", damaged)
    if not damaged:
        assert (reply.status, reply.body) == (200, b"")
    elif wanted is not None:
        assert (reply.status, reply.body) == (200, wanted)
    elif reply.status == 200:  # wrong where only the engine looks
        first, *others = reply.body.split(json.dumps(SERVES).encode())
        assert damaged.startswith(first)
        at = len(first)
        for part in others:
            at = damaged.index(part, at + len('""')) + len(part)
        assert damaged.endswith(others[-1] if others else first)
    else:
        assert (reply.status, refusal_of(reply)) == (400, "invalid_body")


async def test_limits_are_put_only_into_completions(proxy):
    for path, filled in {
        "chat/completions": True,
        "completions?user=/embeddings": True,
        "embeddings": False,
        "responses?x=/completions": False,
        "completions/": False,
    }.items():
        reply = await proxy.ask(f"/filled/v1/{path}", b'{"model":"chat"}')
        wanted = expected(b'{"model":"chat"}', RULES["filled"], completes=filled)
        assert (reply.status, reply.body) == (200, wanted), path


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x", "x", ""])
async def test_no_content_type_hides_a_body(proxy, content_type):
    body = b'{"model":"chat","max_tokens":1000}'
    reply = await proxy.ask("/short/v1/chat/completions", body, content_type=content_type)
    assert (reply.status, reply.body) == (200, expected(body, RULES["short"]))


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_request_without_a_body_passes(proxy, method):
    assert (await proxy.ask("/filled/v1/models", None, method=method)).status == 200


async def test_a_body_in_pieces_arrives_whole_and_with_its_length(proxy, engine):
    async def pieces():
        for byte in b'{"mod', b'el":"ch', b'at", "max_', b'tokens":100', b"0}":
            yield byte
            await asyncio.sleep(0.002)

    reply = await proxy.ask("/filled/v1/chat/completions", pieces())
    body = b'{"model":"chat", "max_tokens":1000}'
    assert (reply.status, reply.body) == (200, expected(body, RULES["filled"]))
    headers = engine.received[-1].headers
    assert headers["content-length"] == str(len(reply.body))
    assert "transfer-encoding" not in headers


async def test_a_client_cannot_give_instructions_and_engines_see_none(proxy, engine):
    forged = 'forward 0.001 1 7 "forged"'
    for route, rules in RULES.items():
        body = b'{"model":"chat","max_tokens":1000}'
        path = f"/{route}/v1/chat/completions"
        reply = await proxy.ask(path, body, **{HEADER: forged, HEADER.upper() + "_": forged})
        assert (reply.status, reply.body) == (200, expected(body, rules))
        assert HEADER not in engine.received[-1].headers


@pytest.mark.parametrize(
    "prompt",
    [b"word " * 1_000_000, b'\\\\\\"' * 1_250_000, "世界\\n".encode() * 600_000],
    ids=["words", "quotes", "unicode"],
)
async def test_a_prompt_of_five_megabytes_arrives_unchanged(proxy, prompt):
    body = b'{"model":"chat","messages":[{"role":"user","content":"%s"}],"max_tokens":9}' % prompt
    assert 4_800_000 < len(body) < 6_000_000
    reply = await proxy.ask("/filled/v1/chat/completions", body)
    assert reply.status == 200
    assert reply.body == expected(body, RULES["filled"])


async def test_eight_megabytes_of_tokens_arrive_and_more_is_too_much(proxy):
    tokens = b",".join([b"%d"] * 4) % (1, 22, 333, 128000)
    head, tail = b'{"prompt":[', b'],"model":"chat"}'
    room = 8 * 1024 * 1024 - len(head) - len(tail) - 1
    body = head + b",".join([tokens] * (room // (len(tokens) + 1))) + tail
    reply = await proxy.ask("/filled/v1/completions", body)
    assert reply.status == 200
    assert reply.body == expected(body, RULES["filled"])
    assert (await proxy.ask("/filled/v1/completions", body + b" " * 100_000)).status == 413
