"""Whatever is written: a configuration or problems; and the schema that editors use."""

from __future__ import annotations

from typing import Any

import jsonschema
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.test_load import BAD_VALUES, DESIGN, changed
from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError
from xds_server.config.schema import json_schema
from xds_server.core.policy import Policy


def outcome(document: Any) -> Any:
    """Return the configuration or its problems; any other exception is a bug."""
    try:
        return load_text(yaml.safe_dump(document))
    except ConfigError as error:
        return error.problems


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "tiers", "instances", "answer", "json", "models", "policy", "kv"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["models", "policy", "listener", "server"]), VALUES))
def test_whatever_is_written_ends_as_a_configuration_or_as_problems(document):
    assert outcome(document)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from([case.values[0] for case in BAD_VALUES if case.values[1] is not ...]),
    VALUES,
)
def test_one_value_replaced_by_anything_never_breaks_the_loader(path, value):
    assert outcome(changed(path, value))


def test_the_schema_accepts_the_design_file_and_refuses_an_unknown_key():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = yaml.safe_load(DESIGN.read_text())
    validator.validate(document)
    document["policy"]["kv"]["hihg"] = 1
    assert not validator.is_valid(document)


def test_the_schema_documents_thresholds_with_the_words_of_the_policy():
    kv = json_schema()["$defs"]["KvPolicy"]["properties"]
    assert kv["high"]["description"].startswith("Degraded from here.")
    assert kv["high"]["default"] == Policy().kv.high
