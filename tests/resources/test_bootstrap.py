"""The bootstrap that a proxy starts with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.fakes.envoy import validate
from xds_server.resources.bootstrap import bootstrap

PLAIN = {"node_id": "edge-1", "cluster": "edge", "xds_host": "10.0.0.1", "xds_port": 18000}


@pytest.mark.envoy
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta": True, "metadata": {"tier": "gold", "zones": ["a", "b"]}, "admin_port": 0},
        {"xds_host": "xds.example", "initial_fetch_timeout_s": 0.25},
        {"xds_host": "::1", "minimum_clusters": 0, "admin_host": "0.0.0.0"},
    ],
    ids=["defaults", "delta", "by name", "ipv6"],
)
async def test_envoy_accepts_it(tmp_path, options):
    assert await validate(bootstrap(**PLAIN | options), tmp_path) == ""


def test_the_node_says_who_it_is():
    node = bootstrap(**PLAIN, metadata={"zone": "a"})["node"]
    assert node == {"id": "edge-1", "cluster": "edge", "metadata": {"zone": "a"}}
    assert "metadata" not in bootstrap(**PLAIN)["node"]


@pytest.mark.parametrize(("delta", "api_type"), [(False, "GRPC"), (True, "DELTA_GRPC")])
def test_clusters_and_listeners_come_over_one_stream_of_either_kind(delta, api_type):
    dynamic = bootstrap(**PLAIN, delta=delta)["dynamic_resources"]
    assert dynamic["ads_config"]["api_type"] == api_type
    assert dynamic["cds_config"]["ads"] == dynamic["lds_config"]["ads"] == {}


@pytest.mark.parametrize(
    ("host", "kind"),
    [("10.0.0.1", "STATIC"), ("::1", "STATIC"), ("xds.internal", "STRICT_DNS")],
)
def test_a_control_plane_by_name_is_looked_up(host, kind):
    config = bootstrap(**PLAIN | {"xds_host": host})
    (cluster,) = config["static_resources"]["clusters"]
    assert cluster["type"] == kind
    assert host in json.dumps(cluster["load_assignment"])


def test_it_is_plain_json():
    config = bootstrap(**PLAIN)
    assert json.loads(json.dumps(config)) == config


EXAMPLES = Path(__file__).resolve().parents[2] / "envoy"


@pytest.mark.parametrize(
    ("name", "delta"), [("bootstrap.yaml", False), ("bootstrap-delta.yaml", True)]
)
def test_the_examples_are_what_the_command_prints(name, delta):
    example = yaml.safe_load((EXAMPLES / name).read_text())
    assert example == bootstrap(
        node_id="envoy-1", cluster="llm", xds_host="xds-server", xds_port=18000, delta=delta
    )


def test_no_python_lives_in_the_folder_that_shares_its_name_with_a_library():
    assert not list(EXAMPLES.rglob("*.py"))
