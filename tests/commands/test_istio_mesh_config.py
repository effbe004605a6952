"""`xds-server istio mesh-config`: what it prints, and what it says of a mesh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.fakes.xds_process import ROOT
from tests.istio.mcp.rig import TEXT
from xds_server.cli import app


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT + "  config_source: {}\n")
    return path


def ask(config: Path, *arguments: str):
    return CliRunner().invoke(app, ["istio", "mesh-config", str(config), *arguments])


def test_the_part_of_the_mesh_config_is_printed(config):
    done = ask(config, "--address", "fleet-xds.istio-system.svc:18010")
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout) == {
        "configSources": [
            {"address": "k8s://"},
            {"address": "xds://fleet-xds.istio-system.svc:18010"},
        ]
    }
    assert "xds://127.0.0.1:18010" in ask(config).stdout


TLS = {"certificate_file": "cert.pem", "key_file": "key.pem"}


def with_source(config: Path, section: dict) -> None:
    config.write_text(TEXT + f"  config_source: {json.dumps(section)}\n")


@pytest.mark.parametrize(
    ("section", "arguments", "said"),
    [
        ({"listen": "0.0.0.0:18010"}, [], "none that istiod could reach: give --address"),
        ({"listen": "[::]:18010"}, [], "none that istiod could reach: give --address"),
        ({"listen": "127.0.0.1:0"}, [], "expected host:port as istiod reaches it"),
        ({}, ["--address", "fleet-xds"], '--address: "fleet-xds": expected host:port'),
        ({}, ["--ca", str(ROOT / "tests/data/tls/cert.pem")], "we speak plaintext there"),
        (TLS, [], "has a certificate: give --ca"),
        (TLS, ["--ca", str(ROOT / "README.md")], "expected certificates in PEM"),
    ],
)
def test_what_istiod_could_not_start_with_is_not_printed(config, section, arguments, said):
    with_source(config, section)
    done = ask(config, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_with_an_authority_it_has_the_certificates_themselves(config):
    with_source(config, TLS)
    done = ask(config, "--ca", str(ROOT / "tests/data/tls/cert.pem"))
    (_, ours) = yaml.safe_load(done.stdout)["configSources"]
    assert ours["tlsSettings"]["mode"] == "SIMPLE"
    assert ours["tlsSettings"]["caCertificates"].startswith("-----BEGIN CERTIFICATE-----")


def test_what_it_prints_is_what_it_takes(config, tmp_path):
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text(ask(config).stdout)
    done = ask(config, "--check", str(mesh))
    assert (done.exit_code, done.stdout) == (0, f"{mesh}: istiod asks us\n")


def test_what_is_wrong_is_named_with_its_place_and_the_fix(config, tmp_path):
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("configSources: [{address: 'xds://a:1', tlsSettings: {mode: MUTUAL}}]")
    done = ask(config, "--check", str(mesh))
    assert done.exit_code == 1
    assert "2 to mend" in done.stderr
    assert 'configSources[0].tlsSettings.mode: "MUTUAL": expected SIMPLE' in done.stderr
    assert "k8s:// too" in done.stderr


@pytest.mark.parametrize("what", ["no-section", "bad-config", "no-file", "no-mesh"])
def test_bad_arguments_end_with_2(config, tmp_path, what):
    arguments: list[str] = []
    if what == "no-section":
        config.write_text(TEXT)
    elif what == "bad-config":
        config.write_text("modles: []")
    elif what == "no-file":
        arguments = ["--check", str(tmp_path / "none")]
    else:
        arguments = ["--check", str(tmp_path / "list")]
        (tmp_path / "list").write_text("- a")
    done = ask(config, *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("xds-server: ")
