"""Which facts of a body are read, and what stands in for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.lua_filter import LuaFilter
from xds_server.resources.bodies.request_facts import STREAM, Fact, Reading, facts_filters, merge
from xds_server.resources.proto import parse_any


def read(readings, body, content_type="application/json"):
    (only,) = facts_filters(merge(readings))
    code = parse_any(only.typed_config).default_source_code.inline_string
    return LuaFilter(code).facts(body, {"content-type": content_type} if content_type else {})


def test_without_readings_there_is_no_filter():
    assert facts_filters(merge([])) == []


def test_each_fact_is_read_once_whoever_needs_it():
    readings = [Reading(fact=Fact.MODEL), STREAM, STREAM, Reading(fact=Fact.MODEL)]
    assert [each.fact for each in merge(readings)] == ["stream", "model"]
    body = b'{"model": "m", "stream": true, "max_tokens": 5}'
    assert read(readings, body) == {"model": "m", "stream": True}


@given(st.lists(st.sampled_from(Fact)))
def test_the_order_of_needs_does_not_move_a_byte(facts):
    readings = [Reading(fact=fact) for fact in facts]
    assert merge(readings) == merge(reversed(readings)) == merge([*readings, *readings])


def test_what_one_part_leaves_open_another_may_decide():
    (merged,) = merge(
        [
            Reading(fact=Fact.MODEL),
            Reading(fact=Fact.MODEL, missing=""),
            Reading(fact=Fact.MODEL, error="!", any_content_type=True),
        ]
    )
    assert merged == Reading(fact=Fact.MODEL, missing="", error="!", any_content_type=True)


@pytest.mark.parametrize("what", ["missing", "error"])
def test_two_values_for_the_same_fact_are_refused(what):
    one, other = (Reading(fact=Fact.MAX_TOKENS, **{what: value}) for value in (512, 1024))
    with pytest.raises(ValueError, match="max_tokens: both 512 and 1024"):
        merge([one, other])


def test_a_value_stands_in_with_its_own_type():
    readings = [
        Reading(fact=Fact.STREAM, missing=False),
        Reading(fact=Fact.MODEL, missing='no"ne\\', error=""),
        Reading(fact=Fact.MAX_TOKENS, missing=0, error=7.5),
    ]
    assert read(readings, b"{}") == {"stream": False, "model": 'no"ne\\', "max_tokens": 0}
    assert read(readings, b"") == {"stream": False, "model": 'no"ne\\', "max_tokens": 0}
    assert read(readings, b"{") == {"model": "", "max_tokens": 7.5}


def test_only_a_part_that_may_not_be_bypassed_reads_bodies_of_every_type():
    body = b'{"stream": true}'
    assert read([STREAM], body) == {"stream": True}
    assert read([STREAM], body, "application/vnd.api+JSON") == {"stream": True}
    assert read([STREAM], body, "text/plain") == {}
    assert read([STREAM], body, None) == {}
    everything = [STREAM, Reading(fact=Fact.MODEL, any_content_type=True)]
    assert read(everything, body, "text/plain") == {"stream": True}
    assert read(everything, body, None) == {"stream": True}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "stream", "x", '"', "\\"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FACTS = tuple(Reading(fact=fact) for fact in Fact)


@given(
    st.dictionaries(st.sampled_from([*Fact, "messages", "é", 'q"', "\\u006dodel"]), JSON),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_the_facts_are_what_an_engine_reads(document, ascii_only, indent):
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    expected = {
        key: float(value) if type(value) is int else value
        for key, value in document.items()
        if key in list(Fact) and isinstance(value, str | bool | int | float)
    }
    if "stream" in expected:
        truth = truth_of(expected.pop("stream"))
        expected |= {} if truth is None else {"stream": truth}
    assert read(FACTS, body) == expected


def truth_of(value):
    """What pydantic 2 makes of a value where a bool is wanted; None where it refuses."""
    word = value.lower() if isinstance(value, str) else value
    if word in (True, *TRUE_WORDS):
        return True
    return False if word in (False, *FALSE_WORDS) else None


TRUE_WORDS = ("1", "t", "true", "y", "yes", "on")
FALSE_WORDS = ("0", "f", "false", "n", "no", "off")


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        *((f'"{word}"', True) for each in TRUE_WORDS for word in (each, each.title())),
        *((f'"{word}"', False) for each in FALSE_WORDS for word in (each, each.upper())),
        *((number, True) for number in ("1", "1.0", "10e-1")),
        *((number, False) for number in ("0", "-0", "0.0")),
        ('"\\u0074rue"', True),
        *((other, None) for other in ("2", "-1", '"maybe"', '""', '" true"', '"true "', '"1.0"')),
        *((other, None) for other in ("null", "[]", "[true]", '{"a": true}')),
    ],
)
def test_an_answer_is_streamed_where_engines_in_python_would(written, wanted):
    found = read([STREAM], b'{"stream": %s}' % written.encode())
    assert found == ({} if wanted is None else {"stream": wanted})


@given(st.binary(max_size=40))
def test_no_bytes_break_the_filter(body):
    assert isinstance(read(FACTS, body, "application/json"), dict)
