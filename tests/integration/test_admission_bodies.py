"""What a request costs, whatever its body: counted right, or refused. Real Envoy 1.40.

The fallback's limit makes routes tell the cost in a header, and an engine that echoes shows it.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.echo_engine import EchoEngine
from tests.fakes.limits_lab import JSON, LimitsLab, limits_lab
from xds_server.core.limits import Limit
from xds_server.core.policy import AdmissionPolicy
from xds_server.resources.bodies.request_facts import Fact

pytestmark = pytest.mark.envoy

DEFAULT = 512
REFUSED = "refused"


def cost(output: int, body: bytes) -> int:
    """The cost of a body in bytes and what it may generate, with 0.25 tokens per byte."""
    return int(output + len(body) * 0.25) + 1


COUNTED: dict[str, tuple[bytes, int]] = {
    "a number": (b'{"max_tokens": 100}', 100),
    "none": (b'{"model": "chat"}', DEFAULT),
    "null": (b'{"max_tokens": null}', DEFAULT),
    "zero": (b'{"max_tokens": 0}', DEFAULT),
    "a float": (b'{"max_tokens": 100.5}', 100),
    "a float that is whole": (b'{"max_tokens": 100.0}', 100),
    "an exponent": (b'{"max_tokens": 1e3}', 1000),
    "a list, which no engine takes": (b'{"max_tokens": [9000]}', DEFAULT),
    "an object, which no engine takes": (b'{"max_tokens": {"max_tokens": 9}}', DEFAULT),
    "the newer name": (b'{"max_completion_tokens": 70}', 70),
    "both names, the newer larger": (b'{"max_tokens": 7, "max_completion_tokens": 900}', 900),
    "both names, the older larger": (b'{"max_tokens": 900, "max_completion_tokens": 7}', 900),
    "a key twice, the last counts": (b'{"max_tokens": 7, "max_tokens": 900}', 900),
    "a key thrice": (b'{"max_tokens": 7, "max_tokens": 8, "max_tokens": 900}', 900),
    "a key twice, null last": (b'{"max_tokens": 900, "max_tokens": null}', DEFAULT),
    "a key with an escape": (b'{"max\\u005ftokens": 900}', 900),
    "another case is another key": (b'{"Max_Tokens": 7}', DEFAULT),
    "nested is not asked": (b'{"a": {"max_tokens": 7}, "max_tokens": 900}', 900),
    "several choices": (b'{"n": 3, "max_tokens": 100}', 300),
    "several choices without a number": (b'{"n": 2}', 2 * DEFAULT),
    "choices that nobody sees": (b'{"best_of": 20, "max_tokens": 100}', 2000),
    "fewer of these than of others": (b'{"n": 3, "best_of": 2, "max_tokens": 100}', 300),
    "none of these": (b'{"best_of": 0, "max_tokens": 100}', 100),
    "the name in Responses": (b'{"max_output_tokens": 900}', 900),
    "the name that llama.cpp believes": (b'{"max_tokens": 1, "n_predict": 900}', 900),
    "several prompts": (b'{"prompt": ["a", "b", "c"], "max_tokens": 100}', 300),
    "several prompts without a number": (b'{"prompt":["a","b"]}', 2 * DEFAULT),
    "several prompts and choices": (b'{"prompt":["a","b"], "n": 3, "max_tokens": 100}', 600),
    "prompts of tokens": (b'{"prompt":[[1, 2] , [3]], "max_tokens": 100}', 200),
    "prompts whose text looks like several": (b'{"prompt":["a\\",\\"b]"], "max_tokens": 100}', 100),
    "prompts with an escaped key": (b'{"\\u0070rompt":["a","b"], "max_tokens": 100}', 200),
    "prompts twice, the last counts": (b'{"prompt":"a","prompt":["a","b"],"max_tokens":100}', 200),
    "one prompt of tokens": (b'{"prompt":[1, 2, 3], "max_tokens": 100}', 100),
    "one prompt in a list": (b'{"prompt":["a"], "max_tokens": 100}', 100),
    "no prompt in a list": (b'{"prompt": [ ], "max_tokens": 100}', 100),
    "a long text of a prompt": (b'{"prompt": "' + b"[" * 9000 + b'", "max_tokens": 100}', 100),
    "prompts that are nested elsewhere": (b'{"a": {"prompt": ["a","b"]}, "max_tokens": 100}', 100),
    "a byte order mark": (b'\xef\xbb\xbf{"max_tokens": 900}', 900),
    "deeply nested": (b'{"max_tokens": 900, "a": ' + b"[" * 500 + b"]" * 500 + b"}", 900),
    "big numbers elsewhere": (b'{"max_tokens": 100, "seed": 12345678901234567890123}', 100),
    "a long prompt": (json.dumps({"max_tokens": 1, "p": "x" * 300_000}).encode(), 1),
    "many bytes per letter": (json.dumps({"p": "ü" * 999}, ensure_ascii=False).encode(), DEFAULT),
    "NaN elsewhere, which Python reads": (b'{"max_tokens": 100, "t": NaN}', 100),
    "no UTF-8 elsewhere": (b'{"max_tokens": 900, "a": "\xff"}', 900),
    "half a surrogate elsewhere": (b'{"max_tokens": 900, "a": "\\ud800"}', 900),
    "the most": (b'{"max_tokens": 1000000}', 1_000_000),
}

NOT_COUNTED: dict[str, bytes] = {
    "negative": b'{"max_tokens": -5}',
    "negative, the newer name": b'{"max_completion_tokens": -1}',
    "negative beside a good one": b'{"max_tokens": 5, "max_completion_tokens": -1}',
    "text": b'{"max_tokens": "100"}',
    "text that is no number": b'{"max_tokens": "many"}',
    "text longer than any name": b'{"max_tokens": "' + b" " * 4200 + b'9000"}',
    "a list of requests": b'[{"max_tokens": 100}]',
    "a bare number": b"100",
    "true": b'{"max_tokens": true}',
    "huge": b'{"max_tokens": 99999999999999999999}',
    "over 32 bits": b'{"max_tokens": 4294967297}',
    "over the most": b'{"max_tokens": 1000001}',
    "no choices": b'{"n": 0}',
    "negative choices": b'{"n": -1}',
    "too many choices": b'{"n": 129}',
    "choices as text": b'{"n": "1"}',
    "too many choices that nobody sees": b'{"best_of": 129}',
    "negative, in Responses": b'{"max_output_tokens": -1}',
    "without an end, as llama.cpp has it": b'{"n_predict": -1}',
    "cut off": b'{"max_tokens": 100',
    "no JSON": b"hello",
    "more behind it": b'{"max_tokens": 100} {"max_tokens": 9}',
    "a comment": b'{"max_tokens": 100 /* or 9 */}',
    "NaN, which Python reads": b'{"max_tokens": NaN}',
    "single quotes": b"{'max_tokens': 100}",
    "UTF-16": '{"max_tokens": 900}'.encode("utf-16"),
    "compressed": gzip.compress(b'{"max_tokens": 900}'),
    "a form": b"max_tokens=900",
}

TYPES: dict[str, dict[str, str]] = {
    "text": {"content-type": "text/plain"},
    "none": {},
    "empty": {"content-type": ""},
    "upper case": {"content-type": "Application/JSON"},
    "with a charset": {"content-type": "application/json; charset=latin-1"},
    "a form": {"content-type": "application/x-www-form-urlencoded"},
    "multipart": {"content-type": "multipart/form-data; boundary=x"},
    "nonsense": {"content-type": "x" * 300},
}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[tuple[LimitsLab, EchoEngine]]:
    echo = EchoEngine()
    plenty = Limit(tokens_per_second=1_000_000_000)
    policy = AdmissionPolicy(default_max_tokens=DEFAULT)
    async with limits_lab(
        tmp_path, limit=plenty, fallback=plenty, echo=echo, admission=policy
    ) as found:
        yield found, echo
        await found.assert_all_accepted()


async def charged(lab: LimitsLab, echo: EchoEngine, **question: object) -> int | str:
    """Return what a request was counted as, or that it was refused as the API's clients expect."""
    before = len(echo.received)
    reply = await lab.ask(**question)  # type: ignore[arg-type]
    if reply.status == 200:
        assert len(echo.received) == before + 1
        return int(echo.received[-1].headers["x-estimated-tokens"])
    assert reply.status == 400, reply
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] in {*Fact} - {"model", "stream"}
    assert reply.error["message"].startswith(f"`{reply.error['param']}` must be a number from ")
    assert len(echo.received) == before
    return REFUSED


async def test_every_body_is_counted_right_or_refused(lab: tuple[LimitsLab, EchoEngine]) -> None:
    found = {name: await charged(*lab, body=body) for name, (body, _) in COUNTED.items()}
    assert found == {name: cost(output, body) for name, (body, output) in COUNTED.items()}
    found = {name: await charged(*lab, body=body) for name, body in NOT_COUNTED.items()}
    assert found == dict.fromkeys(NOT_COUNTED, REFUSED)


async def test_neither_content_type_nor_framing_nor_header_hides_a_cost(
    lab: tuple[LimitsLab, EchoEngine],
) -> None:
    body = b'{"max_tokens": 900}'
    found = {name: await charged(*lab, body=body, headers=each) for name, each in TYPES.items()}
    assert found == dict.fromkeys(TYPES, cost(900, body))

    def pieces(of: bytes) -> Iterator[bytes]:
        return (of[start : start + 7] for start in range(0, len(of), 7))

    async def chunked(of: bytes) -> AsyncIterator[bytes]:
        for piece in pieces(of):
            yield piece
            await asyncio.sleep(0)

    assert await charged(*lab, body=chunked(body)) == cost(900, body)
    assert await charged(*lab, body=chunked(b'{"max_tokens": -900}')) == REFUSED
    long = json.dumps({"max_tokens": 5, "p": "x" * 10_000}).encode()
    assert await charged(*lab, body=chunked(long)) == cost(5, long)
    lies = {**JSON, "x-estimated-tokens": "1"}
    assert await charged(*lab, body=body, headers=lies) == cost(900, body)
    assert await charged(*lab, body=b"") == DEFAULT + 1
    assert await charged(*lab, body=body, path="/v1/x/../completions?max_tokens=1") == cost(
        900, body
    )


async def test_no_cost_is_too_large_for_a_bucket(tmp_path: Path) -> None:
    limit = Limit(tokens_per_second=1000)
    policy = AdmissionPolicy(prompt_tokens_per_byte=1000.0, burst_s=10)
    async with limits_lab(tmp_path, limit=limit, admission=policy) as lab:
        prompts = json.dumps({"max_tokens": 1_000_000, "n": 128, "prompt": ["a"] * 1000})
        for body in (prompts.encode(), b'{"p": "%b"}' % (b"x" * 5_000_000)):
            assert (await lab.ask(io.BytesIO(body))).status == 429
        await lab.assert_all_accepted()
