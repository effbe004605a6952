"""Which facts of a body are read, and what stands in for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.resources.proto import parse_any
from xds_server.resources.request_facts import STREAM, Fact, Reading, facts_filters, merge


def rules_of(readings):
    (only,) = facts_filters(merge(readings))
    return parse_any(only.typed_config).request_rules


def test_without_readings_there_is_no_filter():
    assert facts_filters(merge([])) == []


def test_each_fact_is_read_once_whoever_needs_it():
    rules = rules_of([Reading(fact=Fact.MODEL), STREAM, STREAM, Reading(fact=Fact.MODEL)]).rules
    assert [rule.selectors[0].key for rule in rules] == ["stream", "model"]


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
    rules = rules_of(
        [
            Reading(fact=Fact.STREAM, missing=False),
            Reading(fact=Fact.MODEL, missing="none", error=""),
            Reading(fact=Fact.MAX_TOKENS, missing=0, error=7.5),
        ]
    ).rules
    stream, model, tokens = rules
    assert stream.on_missing.value.bool_value is False
    assert stream.on_error is None
    assert model.on_missing.value.string_value == "none"
    assert model.on_error.value.string_value == ""
    assert tokens.on_missing.value.number_value == 0
    assert tokens.on_error.value.number_value == 7.5


def test_only_a_part_that_may_not_be_bypassed_reads_bodies_of_every_type():
    rules = rules_of([STREAM])
    assert "application/json" in rules.allow_content_types
    assert rules.allow_content_types_regex is None
    rules = rules_of([STREAM, Reading(fact=Fact.MODEL, any_content_type=True)])
    assert rules.allow_content_types_regex.regex == ".*"
    assert rules.allow_empty_content_type
