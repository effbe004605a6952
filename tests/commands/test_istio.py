"""`xds-server istio envoyfilter`: what it prints, and what it refuses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.fakes.istio_patches import patched
from xds_server.cli import app

MESH = Path(__file__).parents[1] / "istio/mesh.yaml"
BIG, SMALL = "vllm-70b.ai.svc.cluster.local", "vllm-8b.ai.svc.cluster.local"


def ask(*arguments: str, config: Path = MESH):
    where = ["--namespace", "ai", "--server", "fleet-xds.ai.svc:18000"]
    return CliRunner().invoke(app, ["istio", "envoyfilter", str(config), *where, *arguments])


def filter_of(*arguments: str, config: Path = MESH):
    done = ask(*arguments, config=config)
    assert done.exit_code == 0, done.output
    return yaml.safe_load(done.stdout)


def added(made) -> dict:
    return {each["name"]: each for each in patched(made, [])}


def test_all_tiers_with_instances_get_their_three_clusters():
    made = filter_of("--label", "app=client", "--label", "team=ml")
    assert made["kind"] == "EnvoyFilter"
    assert made["metadata"] == {"name": "fleet-xds", "namespace": "ai"}
    assert made["spec"]["workloadSelector"] == {"labels": {"app": "client", "team": "ml"}}
    assert set(added(made)) == {
        f"{kind}|8000||{host}" for kind in ("fleet", "outbound") for host in (BIG, SMALL)
    }
    merged = [each for each in made["spec"]["configPatches"] if "cluster" in each["match"]]
    assert [(each["match"]["cluster"], each["patch"]["value"]) for each in merged] == [
        ({"name": f"outbound|8000||{host}"}, {"name": f"mesh|8000||{host}"})
        for host in (BIG, SMALL)
    ]
    fleet = added(made)[f"fleet|8000||{BIG}"]
    source = fleet["eds_cluster_config"]["eds_config"]
    assert source["initial_fetch_timeout"] == "3s"
    (service,) = source["api_config_source"]["grpc_services"]
    assert service["google_grpc"]["target_uri"] == "fleet-xds.ai.svc:18000"
    chain = added(made)[f"outbound|8000||{BIG}"]["cluster_type"]["typed_config"]
    assert chain["clusters"] == [f"fleet|8000||{BIG}", f"mesh|8000||{BIG}"]


def test_without_labels_it_is_for_the_whole_namespace():
    assert "workloadSelector" not in filter_of()["spec"]


def test_services_may_be_chosen_and_the_policy_says_how_many_failures_eject(tmp_path):
    raw = yaml.safe_load(MESH.read_text())
    raw["policy"] = {"failures": {"consecutive": 5}}
    config = tmp_path / "mesh.yaml"
    config.write_text(yaml.safe_dump(raw))
    made = added(filter_of("--service", SMALL, config=config))
    assert set(made) == {f"fleet|8000||{SMALL}", f"outbound|8000||{SMALL}"}
    assert made[f"fleet|8000||{SMALL}"]["outlier_detection"]["consecutive_5xx"] == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "fleet-xds"], '--server: "fleet-xds": expected host:port'),
        (["--server", "fleet-xds:99999"], '--server: "fleet-xds:99999": expected host:port'),
        (["--label", "app"], '--label: "app": expected KEY=VALUE'),
        (["--label", "app=a b"], '--label: "app=a b": expected a label\'s value'),
        (["--label", "-=x"], '--label: "-=x": expected a label\'s name'),
        (["--namespace", "Ai"], '--namespace: "Ai": expected a name of Kubernetes'),
        (["--name", "fleet_xds"], '--name: "fleet_xds": expected the name of a Kubernetes object'),
        (
            ["--service", "llm.ai.svc.cluster.local"],
            f'--service: "llm.ai.svc.cluster.local": expected the host of a tier with instances: {BIG}',
        ),
        (["--service", "busy.ai.svc.cluster.local"], "expected the host of a tier with instances"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_expected(arguments, said):
    done = ask(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_tier_without_a_port_is_named_and_all_problems_are_told_at_once(tmp_path):
    raw = yaml.safe_load(MESH.read_text())
    for tier in ("primary", "fallback"):
        del raw["istio"]["models"][0]["tiers"][tier]["port"]
    config = tmp_path / "mesh.yaml"
    config.write_text(yaml.safe_dump(raw))
    done = ask(config=config)
    assert done.exit_code == 2
    for tier, host in (("primary", BIG), ("fallback", SMALL)):
        assert f"istio.models (chat): tiers.{tier}.port: missing: expected the port of {host}" in (
            done.stderr
        )


def test_a_configuration_without_a_mesh_or_with_problems_is_refused(tmp_path):
    raw = yaml.safe_load(MESH.read_text())
    del raw["istio"]
    config = tmp_path / "plain.yaml"
    config.write_text(yaml.safe_dump(raw))
    assert "expected istio.models with the hosts of our tiers" in ask(config=config).stderr
    config.write_text("models: []")
    done = ask(config=config)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "models" in done.stderr


def test_the_command_of_the_page_can_be_typed_as_it_stands(tmp_path):
    page = (MESH.parents[2] / "docs/istio/envoyfilter.md").read_text()
    (line,) = re.findall(r"^xds-server (istio envoyfilter .*?) \| kubectl", page, re.MULTILINE)
    arguments = [str(MESH) if each == "fleet.yaml" else each for each in shlex.split(line)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout)["spec"]["workloadSelector"] == {
        "labels": {"app": "llm-client"}
    }
