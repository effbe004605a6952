"""What holds for every command: help, documentation, completion, usage."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from tests.fakes.xds_process import ROOT
from xds_server.cli import app

GROUP = typer.main.get_command(app)
PAGES = ("cli.md", "history.md", "alerts.md")


def examples(page: str) -> list[str]:
    """Return the commands that a page shows, without their comments."""
    text = (ROOT / "docs" / page).read_text().partition("<!-- What follows")[0]
    lines = [line for line in text.splitlines() if line.startswith("xds-server ")]
    inline = re.findall(r"`(xds-server [a-z][^`]*)`", text)
    return lines + inline


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_every_command_has_help_and_so_does_every_option(name):
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert done.stderr == ""
    for parameter in GROUP.commands[name].params:
        assert parameter.help, parameter.name


def test_the_page_of_commands_is_current():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    page = (ROOT / "docs/cli.md").read_text()
    assert generate.render_cli() == page, "make docs"
    for name in GROUP.commands:
        assert f"\n## {name}\n" in page


@pytest.mark.parametrize("line", [line for page in PAGES for line in examples(page)])
def test_commands_in_the_documentation_can_be_typed_as_they_stand(line):
    _, name, *arguments = shlex.split(line, comments=True)
    if name.startswith("--"):
        return
    command = GROUP.commands[name]
    if arguments:
        command.make_context(name, arguments)


def test_a_shell_completes_commands():
    environ = {
        "_XDS_SERVER_COMPLETE": "complete_bash",
        "COMP_WORDS": "xds-server st",
        "COMP_CWORD": "1",
    }
    program = "import sys; sys.argv[0] = 'xds-server'; from xds_server.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["status"]


def test_a_command_that_reads_no_file_does_not_wait_for_what_files_and_servers_need():
    code = (
        "import sys, xds_server.cli\n"
        "heavy = {'asyncio', 'grpc', 'pydantic', 'structlog', 'uvicorn'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
