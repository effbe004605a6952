"""`istio.endpoint_picker`: what is refused, what is doubted, and that it needs nothing else of the section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from xds_server.config.load import ConfigError, load_text
from xds_server.istio.picker.decide import PickerOptions
from xds_server.istio.picker.service import options_of

BASE = yaml.safe_load((Path(__file__).parent / "design.yaml").read_text())


def written(picker: Any, **more: Any) -> str:
    return yaml.safe_dump(BASE | {"istio": {"endpoint_picker": picker, **more}})


def test_the_picker_needs_no_models_of_the_mesh_and_has_defaults():
    config = load_text(written({"listen": "0.0.0.0:9002"}))
    assert config.istio is not None
    assert config.istio.endpoint_picker is not None
    assert options_of(config.istio.endpoint_picker) == PickerOptions()
    assert not config.doubts


@pytest.mark.parametrize(
    ("picker", "where", "expected"),
    [
        ({"listen": "9002"}, "istio.endpoint_picker.listen", "ip:port"),
        ({"models": ["other"]}, "istio.endpoint_picker.models[0]", "one of the models: chat"),
        ({"retries": 8}, "istio.endpoint_picker.retries", "at most 7"),
        ({"retries": -1}, "istio.endpoint_picker.retries", "at least 0"),
        ({"retry_after_s": 0}, "istio.endpoint_picker.retry_after_s", "at least 1"),
        ({"max_body_bytes": 10}, "istio.endpoint_picker.max_body_bytes", "at least 1024"),
        ({"stop_delay_s": 601}, "istio.endpoint_picker.stop_delay_s", "at most 600"),
        ({"stop_grace_s": -1}, "istio.endpoint_picker.stop_grace_s", "at least 0"),
        ({"conformance": "yes"}, "istio.endpoint_picker.conformance", "true or false"),
        ({"port": 1}, "istio.endpoint_picker.port", ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named_with_what_was_expected(picker, where, expected):
    with pytest.raises(ConfigError) as caught:
        load_text(written(picker))
    [problem] = caught.value.problems
    assert problem.path == where
    assert expected in problem.expected


@pytest.mark.parametrize(
    "section",
    [{}, {"config_source": {}}, {"endpoint_picker": {}, "config_source": {}}],
    ids=["empty", "another way", "both"],
)
def test_the_other_ways_need_models(section):
    with pytest.raises(ConfigError) as caught:
        load_text(yaml.safe_dump(BASE | {"istio": section}))
    assert [each.path for each in caught.value.problems] == ["istio.models"]


def test_the_conformance_flag_is_doubted():
    config = load_text(written({"conformance": True}))
    assert [each.path for each in config.doubts] == ["istio.endpoint_picker.conformance"]
