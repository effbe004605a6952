"""The section `istio.probe`: what is refused, and that the examples of its page load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError

ROOT = Path(__file__).parents[2]
MESH = (ROOT / "tests/istio/mesh.yaml").read_text()
ISTIOD = {"istiod": "istiod.istio-system.svc:15010"}


def document(probe) -> str:
    raw = yaml.safe_load(MESH)
    raw["istio"]["probe"] = probe
    return yaml.safe_dump(raw)


@pytest.mark.parametrize(
    ("probe", "where", "expected"),
    [
        ({}, "istiod", "required"),
        ({"istiod": "istiod"}, "istiod", "host:port, like istiod.istio-system.svc:15010"),
        ({"istiod": ":15010"}, "istiod", "host:port"),
        ({"istiod": "istiod:0"}, "istiod", "host:port"),
        (ISTIOD | {"late_s": 0}, "late_s", "at least 1"),
        (ISTIOD | {"ports": [0]}, "ports[0]", "at least 1"),
        (ISTIOD | {"namespace": "A"}, "namespace", "a name of Kubernetes"),
        (ISTIOD | {"token_file": "t"}, "ca_file", "goes out in plaintext"),
        (ISTIOD | {"ca_file": "c", "key_file": "k"}, "certificate_file", "required: key_file"),
        (ISTIOD | {"ca_file": "c", "certificate_file": "c"}, "key_file", "required: certificate"),
        (ISTIOD | {"certificate_file": "c", "key_file": "k"}, "ca_file", "required: certificate"),
        (ISTIOD | {"tls": True}, "tls", "no such key"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(probe, where, expected):
    with pytest.raises(ConfigError) as caught:
        load_text(document(probe))
    (found,) = (each for each in caught.value.problems if each.path == f"istio.probe.{where}")
    assert expected in found.expected


def test_a_probe_without_any_port_to_look_at_is_refused():
    raw = yaml.safe_load(document(ISTIOD))
    for tier in raw["istio"]["models"][0]["tiers"].values():
        del tier["port"]
    with pytest.raises(ConfigError) as caught:
        load_text(yaml.safe_dump(raw))
    assert [each.path for each in caught.value.problems] == ["istio.probe.ports"]
    raw["istio"]["probe"]["ports"] = [80]
    assert load_text(yaml.safe_dump(raw)).istio is not None


def test_a_probe_without_models_is_refused():
    raw = yaml.safe_load(document(ISTIOD))
    raw["istio"]["models"] = []
    with pytest.raises(ConfigError) as caught:
        load_text(yaml.safe_dump(raw))
    assert [each.path for each in caught.value.problems] == ["istio.models"]


def test_the_examples_of_the_page_load():
    page = (ROOT / "docs/istio/probe.md").read_text()
    blocks = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    probes = [each["istio"]["probe"] if "istio" in each else each["probe"] for each in blocks[:2]]
    for probe in probes:
        assert load_text(document(probe)).doubts == ()
    assert blocks[2]["spec"]["workloadSelector"]["labels"] == {"app": "gpu-xds-probe"}
