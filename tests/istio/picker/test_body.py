"""What bodies become, compared with the reference that the proxies' own rewriting is compared with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.rewrite_reference import Rules, expected
from xds_server.core.model import MaxTokens
from xds_server.istio.picker.body import AS_IT_IS, Body, Rewrite, UnreadableError

KEYS = st.sampled_from(
    ["model", "max_tokens", "max_completion_tokens", "messages", "n", "ümlaut", "mod\\u0065l", ""]
)
NUMBERS = st.sampled_from(
    ["0", "1", "-1", "7", "100", "1e3", "2.0", "2.5", "-0", "12345678901234567890", "1e400"]
)
QUOTED = st.sampled_from(['"100"', '" 1_000 "', '"10.0"', '"x"', '""', '"-5"', '"gpt\\n\\u00e9"'])
VALUES = st.one_of(
    NUMBERS,
    QUOTED,
    st.sampled_from(["null", "true", "{}", "[]", '{"model": "in"}', '[{"max_tokens": 5}]']),
)
SPACE = st.sampled_from(["", " ", "\n\t "])


@st.composite
def objects(draw: st.DrawFn) -> str:
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    space = draw(SPACE)
    inner = f",{space}".join(f'{space}"{key}"{space}:{space}{value}' for key, value in members)
    return f"{space}{{{inner}{space}}}{space}"


RULES = st.builds(
    Rules,
    serves=st.sampled_from([None, "big", 'q"ü']),
    scale=st.sampled_from([None, "0.5", "0.7", "1.0", "0.001"]),
    floor=st.sampled_from([1, 16]),
    when_absent=st.sampled_from([None, 64]),
)


def rewrite_of(rules: Rules) -> Rewrite:
    short = None
    if rules.scale is not None:
        short = MaxTokens(
            scale=float(rules.scale), floor=rules.floor, when_absent=rules.when_absent
        )
    return Rewrite(model=rules.serves, max_tokens=short)


def ours(raw: bytes, rules: Rules, *, completes: bool) -> bytes | None:
    try:
        return Body(raw).rewritten(rewrite_of(rules), completes=completes)
    except UnreadableError:
        return None


@settings(max_examples=500, deadline=None)
@given(text=objects(), rules=RULES, completes=st.booleans(), bom=st.booleans())
def test_bodies_become_what_the_reference_says(text, rules, completes, bom):
    raw = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    assert ours(raw, rules, completes=completes) == expected(raw, rules, completes=completes)


@settings(max_examples=300, deadline=None)
@given(text=objects(), at=st.integers(0, 200), broken=st.binary(max_size=3))
def test_broken_bodies_are_broken_to_the_reference_too(text, at, broken):
    raw = text.encode()
    raw = raw[:at] + broken + raw[at + 1 :]
    rules = Rules(serves="big", scale="0.5", floor=1)
    assert ours(raw, rules, completes=True) == expected(raw, rules, completes=True)


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        (b'{"model": "a"}', "a"),
        (b'{"model": "a", "model": "b"}', "b"),
        (b'{"mod\\u0065l": "\\u0061"}', "a"),
        (b'{"messages": [{"model": "x"}]}', None),
        (b'{"model": 7}', None),
        (b'{"model": null}', None),
        (b'\xef\xbb\xbf{"model": "a"}', "a"),
        (b'{"model": "a", "bad": "\xff"}', "a"),
        (b"{}", None),
    ],
)
def test_the_model_is_the_last_one_of_the_top_level(raw, model):
    assert Body(raw).model == model


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"[]", b"7", b'"x"', b"{", b"{} {}", b'{"a"}', b'{"a":}', b"{a: 1}", b'{"a": 1,}',
     b"[" * 100_000, b'{"a":' + b"[" * 100_000, '{"model": "a"}'.encode("utf-16")],
    ids=lambda raw: str(raw[:12]),
)  # fmt: skip
def test_what_is_no_object_is_unreadable(raw):
    with pytest.raises(UnreadableError):
        Body(raw)


def test_nothing_to_do_leaves_every_byte():
    raw = b' {"a": 1e999, "b": "\xff\\u0000"}\n'
    assert Body(raw).rewritten(AS_IT_IS, completes=True) == raw


@pytest.mark.parametrize(
    "value",
    [
        "[" + "7," * 200_000 + "7]",
        "9" * 5000,
        "[" + "9" * 5000 + "]",
        '{"n": [' + "9" * 5000 + "]}",
    ],
    ids=["many numbers", "a long one", "one in a list", "one in an object"],
)
def test_numbers_of_any_length_and_number_are_left_as_they_are(value):
    raw = f'{{"prompt": {value}, "model": "a"}}'.encode()
    became = Body(raw).rewritten(Rewrite(model="b"), completes=True)
    assert became == raw.replace(b'"a"', b'"b"')
    assert became == expected(raw, Rules(serves="b"))
