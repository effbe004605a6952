"""Files that are no configuration: refused in words, with their place."""

from __future__ import annotations

import pytest
import yaml

from tests.config.test_load import MINIMAL, problems_of
from xds_server.config.load import MAX_BYTES, load_file, load_text
from xds_server.config.problems import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "(file): (missing): a mapping with the key models", id="empty"),
        pytest.param("- 1", "(file): [1]: a mapping with the key models", id="a-list"),
        pytest.param(
            "models: [", "line 1, column 10: expected the node content, but found '<stream end>': "
            "valid YAML", id="broken",
        ),
        pytest.param("models: !!python/object:x {}", None, id="foreign-tag"),
        pytest.param("\x00", None, id="control-character"),
        pytest.param("a: 1\n---\nb: 2", None, id="two-documents"),
        pytest.param("[" * 3000, None, id="nested-for-ever"),
        pytest.param("{[1]: 2}", None, id="a-list-as-key"),
    ],
)  # fmt: skip
def test_text_that_is_no_configuration_is_refused_with_its_place(text, expected):
    found = problems_of(text)
    if expected is not None:
        assert found == [expected]


def test_a_key_written_twice_is_a_problem_and_not_the_last_one_wins():
    text = yaml.safe_dump(MINIMAL) + "listener: {port: 1}\nlistener: {port: 2}\n"
    (problem,) = problems_of(text)
    assert problem.endswith("listener: each key once in a mapping")
    assert problem.startswith("line ")


def test_a_file_that_cannot_be_read_is_one_clear_problem(tmp_path):
    for path, expected in [
        (tmp_path / "missing.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            load_file(path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"models: \xff\xfe")
    with pytest.raises(ConfigError, match="byte 8 is not UTF-8"):
        load_file(binary)
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=f"at most {MAX_BYTES} bytes"):
        load_file(huge)


def test_what_is_written_once_may_be_merged_in_elsewhere_and_overridden():
    text = """
models:
  - name: chat
    tiers:
      - name: primary
        limit: &limit {requests_per_second: 10, tokens_per_second: 1000}
        instances: [{name: a, address: "10.0.0.1:80"}]
      - name: fallback
        limit: &less {<<: *limit, requests_per_second: 5}
        instances: [{name: b, address: "10.0.0.2:80"}]
      - name: last
        limit: {<<: *less, tokens_per_second: 10}
        instances: [{name: c, address: "10.0.0.3:80"}]
      - {name: static, answer: {json: {choices: []}}}
"""
    limits = [tier.limit for tier in load_text(text).topology.models[0].tiers[:3]]
    assert [(each.requests_per_second, each.tokens_per_second) for each in limits] == [
        (10, 1000),
        (5, 1000),
        (5, 10),
    ]
    (problem,) = problems_of(text.replace("{<<: *less, t", "{<<: *less, tokens_per_second: 1, t"))
    assert "tokens_per_second: each key once in a mapping" in problem
