from __future__ import annotations

import pytest

from tests.fakes.brain import Brain, sample, small_fleet
from xds_server.commands.explanation import fitted, told
from xds_server.core.explain import explain


def explained(subject: str) -> str:
    brain = Brain(small_fleet())
    brain.run(("a", "b", "c", "f"), until=5.0)
    brain.feed(sample("a", 6.0, kv_ratio=0.7), sample("b", 6.0, kv_ratio=0.3), at=6.0)
    return told(explain(brain.plan, subject))


def test_an_instance_is_told_in_three_lines():
    first, calculation, change = explained("a").splitlines()
    assert first.startswith("a (healthy, telemetry fresh, pressure 70%): ")
    assert "capacity 40 x ceiling 100% x correction" in calculation
    assert change.startswith("  What changes it: ")


def test_a_model_is_told_with_its_tiers_and_each_tier_with_its_instances():
    text = explained("chat")
    paragraphs = text.split("\n\n")
    assert paragraphs[0].startswith("chat: Requests go to primary")
    assert paragraphs[1].startswith("chat/primary (healthy")
    assert "\n  a: healthy, weight " in paragraphs[1]
    assert "{" not in text
    assert not text.endswith("\n")


def test_what_else_is_to_be_said_of_an_instance_is_a_line_of_its_own():
    brain = Brain(small_fleet())
    brain.run(("a", "b", "c", "f"), until=5.0)
    note = "Its agent is silent: nothing for 9 s, while its engine answers requests."
    lines = told({**explain(brain.plan, "a"), "note": note}).splitlines()
    assert lines[2] == f"  {note}"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_on_a_terminal_lines_are_broken_between_words_and_set_in(width):
    text = explained("chat")
    shown = fitted(text, width)
    assert max(map(len, shown.splitlines())) <= width
    assert shown.split() == text.split()
    assert [each for each in shown.splitlines() if each and each[0] != " "] == [
        each for each in shown.splitlines() if each.startswith("chat")
    ]
