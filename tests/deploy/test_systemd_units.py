"""The systemd units: what they promise, and what systemd itself says of them where it is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sidecar_agent.cli
import sidecar_agent.run
import xds_server.cli

ROOT = Path(__file__).resolve().parents[2]
UNITS = {path.stem: path for path in sorted((ROOT / "deploy/systemd").glob("*.service"))}
HARDENED = {
    "DynamicUser": "yes",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "CapabilityBoundingSet": "",
}


def sections(path: Path) -> dict[str, dict[str, list[str]]]:
    """Read a unit file; a directive may come more than once."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            found[section][name].append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_the_process_itself_says_when_it_is_ready_and_that_it_lives(name):
    service = sections(UNITS[name])["Service"]
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert int(service["WatchdogSec"][0]) > 0
    assert int(service["TimeoutStartSec"][0]) > int(service["WatchdogSec"][0])


@pytest.mark.parametrize("name", UNITS)
def test_it_runs_hardened(name):
    service = sections(UNITS[name])["Service"]
    assert {key: service[key][-1] for key in HARDENED} == HARDENED
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]
    assert "User" not in service


@pytest.mark.parametrize("name", UNITS)
def test_it_starts_a_command_that_there_is_with_options_that_it_has(name):
    (command,) = sections(UNITS[name])["Service"]["ExecStart"]
    program, subcommand, *rest = command.split()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(program).name in scripts
    app = {"xds-server": xds_server.cli.app, "sidecar-agent": sidecar_agent.cli.app}[name]
    shown = CliRunner().invoke(app, [subcommand, "--help"], env={"COLUMNS": "200"}).output
    for option in (each for each in rest if each.startswith("--")):
        assert option in shown


@pytest.mark.parametrize("name", UNITS)
def test_a_restart_is_tried_where_it_can_help(name):
    service = sections(UNITS[name])["Service"]
    assert service["Restart"] == ["on-failure"]
    hopeless = {int(each) for each in service["RestartPreventExitStatus"][0].split()}
    assert hopeless == {xds_server.cli.BAD_CONFIG} == {sidecar_agent.cli.EXIT_SETTINGS}
    assert sidecar_agent.run.EXIT_RESTART not in hopeless
    # And is tried for as long as it takes, at a pace that a host does not feel.
    assert sections(UNITS[name])["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert int(service["RestartSec"][0]) >= 2


def test_the_server_finds_its_state_directory_where_systemd_makes_it():
    service = sections(UNITS["xds-server"])["Service"]
    assert service["StateDirectory"] == ["gpu-xds"]
    assert not any("state-dir" in each for each in service["ExecStart"])


def test_the_agent_reaches_the_gpus_and_no_other_device():
    service = sections(UNITS["sidecar-agent"])["Service"]
    assert service["DevicePolicy"] == ["closed"]
    assert all(re.match(r"char-nvidia", each) for each in service["DeviceAllow"])
    assert "PrivateDevices" not in service


@pytest.mark.parametrize("name", UNITS)
async def test_systemd_finds_nothing_wrong(name, tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # Nothing to ask; the tests above hold all the same.
    unit = tmp_path / UNITS[name].name
    # It looks whether the program is there, which it is not where nothing is installed.
    unit.write_text(re.sub(r"/opt/gpu-xds/bin/\S+", "/bin/true", UNITS[name].read_text()))
    process = await asyncio.create_subprocess_exec(
        *(analyze, "verify", "--man=no", str(unit)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    mine = [line for line in out.decode().splitlines() if unit.name in line or str(unit) in line]
    assert (process.returncode, mine) == (0, [])
