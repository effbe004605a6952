"""docs/xds.md names every rule, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/xds.md").read_text()


def test_every_rule_is_on_the_page() -> None:
    rules = re.findall(r"^\| (R\d+) \|", PAGE, re.MULTILINE)
    assert rules == [f"R{number}" for number in range(1, 43)]


def test_every_test_on_the_page_exists() -> None:
    files = [
        *(ROOT / "tests/xds").glob("test_*.py"),
        *(ROOT / "tests/integration").glob("test_xds_*"),
    ]
    defined = set(re.findall(r"def (test_\w+)", "\n".join(each.read_text() for each in files)))
    named = {each for each in re.findall(r"test_\w+", PAGE) if not each.startswith("test_xds_")}
    assert len(named) > 50
    assert not named - defined


def test_every_rule_has_a_test_of_its_name_or_names_one() -> None:
    for line in re.findall(r"^\| R\d+ \|.*$", PAGE, re.MULTILINE):
        assert re.search(r"`[^`]*test_\w+", line), line
