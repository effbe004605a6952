"""How Prometheus gets to where the tests look for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.prometheus import ROOT

INSTALL = ROOT / "deploy/prometheus/install.sh"


@pytest.fixture
def path(tmp_path) -> Path:
    """A PATH that has what the script needs to find out that it can do nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mkdir", "dirname", "ln"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


def install(target: Path, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", INSTALL, target],
        env={**os.environ, "PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def a_program(path: Path, name: str) -> None:
    (path / name).write_text("#!/bin/sh\nexit 0\n")
    (path / name).chmod(0o755)


def test_a_machine_without_it_and_without_apt_gets_one_sentence(tmp_path, path):
    done = install(tmp_path / "prometheus", path)
    assert done.returncode == 1
    assert done.stderr.startswith("no Prometheus: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "prometheus").exists()


def test_what_is_on_the_path_is_used(tmp_path, path):
    for name in ("promtool", "prometheus"):
        a_program(path, name)
    assert install(tmp_path / "prometheus", path).returncode == 0
    assert (tmp_path / "prometheus/usr/bin/promtool").resolve() == path / "promtool"


def test_one_of_the_two_is_not_enough(tmp_path, path):
    a_program(path, "promtool")
    assert install(tmp_path / "prometheus", path).returncode == 1


def test_what_is_there_is_left_alone(tmp_path, path):
    there = tmp_path / "prometheus/usr/bin"
    there.mkdir(parents=True)
    for name in ("promtool", "prometheus"):
        a_program(there, name)
    assert install(tmp_path / "prometheus", path).returncode == 0
    assert not (there / "promtool").is_symlink()


def test_a_package_that_cannot_be_fetched_leaves_nothing_behind(tmp_path, path):
    for name in ("id", "mktemp", "rm"):
        (path / name).symlink_to(shutil.which(name))
    a_program(path, "dpkg-deb")
    (path / "apt-get").write_text("#!/bin/sh\necho no network >&2\nexit 100\n")
    (path / "apt-get").chmod(0o755)
    done = install(tmp_path / "prometheus", path)
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert "no Prometheus: its package cannot be fetched" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["bin"]
