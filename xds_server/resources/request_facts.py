"""What a request's JSON body says at its top level, copied to where routes and filters can read it.

Parsing the body is the dearest thing a proxy does for a request, so there is one filter per listener that
reads exactly what the configuration needs, and none where nothing is needed. A part of the configuration
says what it needs as `Reading`s; `merge` puts those of all parts together.

    filters += facts_filters(merge([*stream_readings, *model_readings, *limit_readings]))

Each fact ends up as dynamic metadata, namespace `METADATA`, key = the fact's name in the body, with the type that the
JSON value has (a number as a double, text as text, true and false; what is null, a list or a mapping counts as
missing). What Envoy 1.40 does was seen on the real one; `tests/integration/test_request_facts.py` keeps it true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed

Value = str | float | bool


class Fact(StrEnum):
    """A top-level key of the body; the key in the metadata is the same."""

    STREAM = "stream"
    MODEL = "model"
    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    CHOICES = "n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One fact that is needed, and what stands in for it."""

    fact: Fact
    missing: Value | None = None
    """In place of a key that is not there, or of a body that is empty; None leaves no mark."""
    error: Value | None = None
    """In place of what cannot be read because the body is no JSON; None leaves no mark."""
    any_content_type: bool = False
    """Read the body whatever its content type says: who limits or refuses by a fact may not be bypassed
    by a header that engines ignore."""


STREAM = Reading(fact=Fact.STREAM)
"""Whether the answer is to be streamed; no mark where the body does not say."""

_JSON_TYPES = tuple(
    f"application/json{rest}"
    for rest in ("", "; charset=utf-8", ";charset=utf-8", "; charset=UTF-8", ";charset=UTF-8")
)
"""Envoy compares the whole header."""


def merge(readings: Iterable[Reading]) -> tuple[Reading, ...]:
    """Return one reading per fact, in the order of `Fact`.

    Raises:
        ValueError: Two parts want different values in place of the same fact.
    """
    merged: dict[Fact, Reading] = {}
    for each in readings:
        other = merged.get(each.fact, each)
        merged[each.fact] = Reading(
            fact=each.fact,
            missing=_either(each.fact, other.missing, each.missing),
            error=_either(each.fact, other.error, each.error),
            any_content_type=other.any_content_type or each.any_content_type,
        )
    return tuple(merged[fact] for fact in Fact if fact in merged)


def _either(fact: Fact, one: Value | None, other: Value | None) -> Value | None:
    if one is not None and other is not None and one != other:
        raise ValueError(f"{fact}: both {one!r} and {other!r} shall stand in for it")
    return other if one is None else one


def facts_filters(readings: Sequence[Reading]) -> list[Any]:
    """Author the filter for readings that are merged, as a list of one; none for none."""
    if not readings:
        return []
    j = typed.json_to_metadata
    rules = j.JsonToMetadataMatchRules(rules=[_rule(each) for each in readings])
    if any(each.any_content_type for each in readings):
        rules.allow_content_types_regex = typed.matcher.RegexMatcher(regex=".*")
        rules.allow_empty_content_type = True
    else:
        rules.allow_content_types = list(_JSON_TYPES)
    return [
        typed.hcm.HttpFilter(
            name="envoy.filters.http.json_to_metadata",
            typed_config=pack(j.JsonToMetadata(request_rules=rules)),
        )
    ]


def fact_is(fact: Fact, value: Value) -> Any:
    """Author the route condition "the fact (or what stands in for it) is this value"."""
    m = typed.matcher
    if isinstance(value, bool):
        matcher = m.ValueMatcher(bool_match=value)
    elif isinstance(value, str):
        matcher = m.ValueMatcher(string_match=m.StringMatcher(exact=value))
    else:
        matcher = m.ValueMatcher(double_match=m.DoubleMatcher(exact=value))
    return _condition(fact, matcher)


def fact_is_one_of(fact: Fact, values: Sequence[str]) -> Any:
    """Author the route condition "the fact is one of these texts"."""
    m = typed.matcher
    if len(values) == 1:
        return fact_is(fact, values[0])
    exact = [m.ValueMatcher(string_match=m.StringMatcher(exact=value)) for value in values]
    return _condition(fact, m.ValueMatcher(or_match=m.OrMatcher(value_matchers=exact)))


def fact_is_present(fact: Fact) -> Any:
    """Author the route condition "the body has the fact", or something stands in for it."""
    return _condition(fact, typed.matcher.ValueMatcher(present_match=True))


def _condition(fact: Fact, value: Any) -> Any:
    segment = typed.matcher.MetadataMatcherPathSegment(key=fact.value)
    return typed.matcher.MetadataMatcher(filter=METADATA, path=[segment], value=value)


def _rule(reading: Reading) -> Any:
    j = typed.json_to_metadata
    rule = j.JsonToMetadataRule(
        selectors=[j.JsonToMetadataSelector(key=reading.fact.value)],
        on_present=_pair(reading.fact),
    )
    if reading.missing is not None:
        rule.on_missing = _pair(reading.fact, reading.missing)
    if reading.error is not None:
        rule.on_error = _pair(reading.fact, reading.error)
    return rule


def _pair(fact: Fact, value: Value | None = None) -> Any:
    pair = typed.json_to_metadata.JsonToMetadataKeyValuePair(
        metadata_namespace=METADATA, key=fact.value
    )
    if value is not None:
        pair.value = _value(value)
    return pair


def _value(value: Value) -> Any:
    wrapped = typed.protobuf.Value
    if isinstance(value, bool):
        return wrapped(bool_value=value)
    if isinstance(value, str):
        return wrapped(string_value=value)
    return wrapped(number_value=value)
