"""The Dockerfile: what it must never do, and that it knows every package of the product."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"^\s*#.*\n", "", TEXT, flags=re.MULTILINE)
STAGES = re.split(r"^(?=FROM )", INSTRUCTIONS, flags=re.MULTILINE)[1:]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def top_level_folders() -> set[str]:
    tools = PROJECT["tool"]["setuptools"]
    moved = tools["package-dir"]
    tops = {name.split(".")[0] for name in tools["packages"]}
    return {moved.get(name, name).split("/")[0] for name in tops}


@pytest.mark.parametrize("folder", sorted(top_level_folders()))
def test_every_package_of_the_product_reaches_the_image(folder):
    assert f"COPY {folder} ./{folder}" in INSTRUCTIONS
    assert f"!{folder}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_it_is_never_root():
    product = next(stage for stage in STAGES if " AS product" in stage)
    (user,) = re.findall(r"^USER (\S+)$", product, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), (
        "a number: Kubernetes can tell that it is not 0"
    )
    for stage in STAGES:
        if stage.startswith("FROM product"):
            assert "USER" not in stage


def test_nobodys_index_is_named_and_no_certificate_is_built_in():
    assert not re.search(r"https?://|index-url|trusted-host", INSTRUCTIONS)
    for secret in ("pip_conf", "pip_cert"):
        assert f"--mount=type=secret,id={secret}" in INSTRUCTIONS
        assert f"COPY {secret}" not in INSTRUCTIONS


def test_versions_are_those_of_the_constraints():
    installs = re.findall(r"pip[^;]*? install [^;]*", INSTRUCTIONS)
    assert len(installs) == 3
    for command in installs:
        assert "--constraint constraints.txt" in command or "--no-index" in command


def test_the_last_stage_is_the_product():
    assert STAGES[-1].split("\n")[0] == "FROM product AS runtime"


def test_the_base_is_a_python_that_the_project_supports():
    (version,) = re.findall(r"^ARG PYTHON_IMAGE=python:3\.(\d+)-", TEXT, re.MULTILINE)
    (least,) = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    assert int(version) >= int(least)
