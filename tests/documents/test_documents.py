"""Every document: its commands can be typed as they stand, those marked `sh` are run, its links lead somewhere."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import sidecar_agent.cli
import xds_server.cli
from tests.fakes.xds_process import ROOT, running_server

PROGRAMS = {
    "xds-server": typer.main.get_command(xds_server.cli.app),
    "sidecar-agent": typer.main.get_command(sidecar_agent.cli.app),
}
PAGES = sorted(
    each.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "deploy/**/*.md",
        "demo/*.md",
        "envoy/*.md",
        "protos/*.md",
    )
    for each in ROOT.glob(pattern)
)
LISTED = ("quickstart", "concepts", "configuration", "agent", "envoy", "operations", "metrics",
          "security", "architecture", "decisions")  # fmt: skip
"""What there must be a page about."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
GENERATED = "<!-- What follows is made"


def written(page: str) -> str:
    """Return what people wrote of a page."""
    return (ROOT / page).read_text().partition(GENERATED)[0]


def blocks(page: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind."""
    return [body for found, body in FENCE.findall(written(page)) if found == kind]


def commands(page: str) -> list[list[str]]:
    """Return the commands of ours in all blocks, without what a shell does for them."""
    found = []
    for kind, body in FENCE.findall(written(page)):
        if kind in {"", "sh", "text"}:
            for line in body.replace("\\\n", " ").splitlines():
                words = _words(line)
                if words and words[0] in PROGRAMS and len(words) > 1:
                    found.append(words)
    return found


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    return list(itertools.takewhile(lambda word: word not in {">", ">>", "|", "&", "&&"}, words))


@pytest.mark.parametrize("words", [each for page in PAGES for each in commands(page)], ids=" ".join)
def test_commands_can_be_typed_as_they_stand(words):
    program, name, *arguments = words
    if name.startswith("--"):
        return
    group = PROGRAMS[program]
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands[name]
    if any("{" in each or each.isupper() for each in arguments):
        return  # a placeholder, for people
    command.make_context(name, arguments)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [each for each in PAGES if blocks(each, "sh")])
async def test_blocks_marked_sh_are_run(page, tmp_path):
    fleet = blocks("docs/quickstart.md", "yaml")[0]
    (tmp_path / "fleet.yaml").write_text(fleet)
    (tmp_path / "old.yaml").write_text(fleet)
    (tmp_path / "new.yaml").write_text(fleet.replace("capacity: 20", "capacity: 30"))
    ours = Path(sys.executable).parent
    async with running_server(
        tmp_path / "fleet.yaml", tmp_path / "state", ["--grace-s", "0"]
    ) as server:
        environ = os.environ | {
            "PATH": f"{ours}{os.pathsep}{os.environ['PATH']}",
            "XDS_SERVER_ADMIN": server.admin_url,
            "COLUMNS": "120",
        }
        for body in blocks(page, "sh"):
            done = await asyncio.to_thread(
                subprocess.run,
                [shutil.which("bash") or "sh", "-eu", "-c", body],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{body}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = (ROOT / page).parent
    for target in LINK.findall((ROOT / page).read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (folder / path).resolve() if path else ROOT / page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there.read_text()), target


def anchors(text: str) -> set[str]:
    """Return the anchors of headings, as forges make them."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", head).strip().lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page not in PAGES:
            continue
        reached.add(page)
        folder = (ROOT / page).parent
        for target in LINK.findall((ROOT / page).read_text()):
            path = (folder / target.partition("#")[0]).resolve()
            if "://" not in target and path.is_relative_to(ROOT):
                waiting.append(path.relative_to(ROOT).as_posix())
    assert set(PAGES) - reached == set()


def test_there_is_a_page_about_everything_that_a_user_asks_for():
    assert {f"docs/{name}.md" for name in LISTED} <= set(PAGES)
    assert len((ROOT / "README.md").read_text().splitlines()) < 200
