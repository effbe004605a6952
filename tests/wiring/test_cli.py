"""The command line: exit codes and sentences."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT
from xds_server.cli import app

DESIGN = ROOT / "tests/config/design.yaml"


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(DESIGN.read_text())
    return path


def run(*arguments: str, environ: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env=environ)


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "xds_server", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("xds-server 0.")


def test_a_bad_file_is_refused_at_start_with_all_its_problems(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("models: []\npolicy: {kv: {high: 2}}\nnonsense: 1\n")
    for verb in ("serve", "check-config", "render"):
        done = run(verb, str(config))
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr.splitlines()[0] == f"xds-server: {config}: 3 problems"
        assert "policy.kv.high: 2: expected a number of at most 1" in done.stderr


def test_a_bad_setting_is_refused_at_start(config):
    done = run("serve", str(config), environ={"XDS_SERVER_ADMIN_LISTEN": "nowhere"})
    assert done.exit_code == 2
    assert 'XDS_SERVER_ADMIN_LISTEN: "nowhere": expected ip:port' in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        pytest.param(["--version"], 0, "xds-server 0.", id="version"),
        pytest.param(["--help"], 0, "check-config", id="help"),
        pytest.param(["serve", "--help"], 0, "XDS_SERVER_GRACE_S", id="serve-help"),
        pytest.param([], 2, "Usage", id="nothing"),
        pytest.param(["nonsense"], 2, "No such command", id="unknown-command"),
        pytest.param(["serve", "missing.yaml"], 2, "No such file or directory", id="no-file"),
        pytest.param(["bootstrap", "--node-id", "n", "--server", "x"], 2, "host:port", id="server"),
        pytest.param(["explain", "a", "--admin", "127.0.0.1:1"], 1, "is it running?", id="nobody"),
        pytest.param(["explain", "a", "--admin", "ftp://x"], 2, "an http address", id="ftp"),
    ],
)
def test_commands_end_with_a_code_and_a_sentence(arguments, code, text):
    done = run(*arguments)
    assert done.exit_code == code
    assert text in done.stdout + done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_check_config_schema_render_and_bootstrap_print_what_they_promise(config):
    done = run("check-config", str(config))
    assert (done.exit_code, done.stdout) == (0, f"{config}: OK: 1 model, 3 instances\n")
    assert json.loads(run("schema").stdout)["properties"]["models"]
    rendered = run("render", str(config))
    assert rendered.exit_code == 0
    assert "chat/primary" in rendered.stdout
    json.loads(rendered.stdout)
    for flags, api in ((["--delta"], "DELTA_GRPC"), ([], "GRPC")):
        done = run("bootstrap", "--node-id", "n1", "--server", "xds:18000", *flags)
        document = json.loads(done.stdout)
        assert document["node"]["id"] == "n1"
        assert document["dynamic_resources"]["ads_config"]["api_type"] == api


def test_check_config_warns_of_an_answer_that_no_client_can_read(config):
    text = config.read_text()
    config.write_text(text[: text.index("json: {choices")] + "json: {foo: bar}\n")
    done = run("check-config", str(config))
    assert done.exit_code == 0
    assert done.stdout == f"{config}: OK: 1 model, 3 instances\n"
    assert done.stderr == (
        'xds-server: warning: models[0].tiers[2].answer.json: {"foo": "bar"}: expected choices, '
        "or an error: OpenAI's clients can read nothing else\n"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--node-id", ""], '--node-id: "": expected a name', id="no-id"),
        pytest.param(["--node-id", "a\nb"], '--node-id: "a\\nb": expected a name', id="line-break"),
        pytest.param(["--cluster", " "], '--cluster: " ": expected a name', id="blank-cluster"),
        pytest.param(["--admin-port", "99999"], "--admin-port: 99999: expected a port", id="port"),
        pytest.param(["--server", "xds"], '--server: "xds": expected host:port', id="no-port"),
        pytest.param(["--server", ":18000"], '--server: ":18000": expected host', id="no-host"),
        pytest.param(["--server", "xds:1\u0663"], "expected host:port", id="arabic-digit"),
    ],
)
def test_a_bootstrap_that_envoy_would_refuse_is_not_printed(flags, message):
    done = run("bootstrap", "--node-id", "n1", *flags)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr


def test_all_bad_arguments_of_a_bootstrap_are_told_at_once():
    done = run("bootstrap", "--node-id", "", "--admin-port", "-1", "--server", "xds")
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()[1:]] == [
        "--node-id",
        "--server",
        "--admin-port",
    ]


def test_explain_asked_at_a_port_that_is_not_http_says_so_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer():
            connection, _ = listening.accept()
            with connection:
                # What a gRPC server says first: a SETTINGS frame.
                connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        done = run("explain", "chat", "--admin", f"127.0.0.1:{port}")
        thread.join(PATIENCE_S)
    assert done.exit_code == 1
    assert "no answer from" in done.stderr
    assert "Traceback" not in done.stderr
