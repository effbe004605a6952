"""What somebody may have meant by a name that nothing has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.core.nearest import MOST_ASKED, MOST_NAMED, nearest, shown, some, there_is

NAMES = [f"gpu-{number:04}.eu-west" for number in range(1000)]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("gpu-0007.eu-wets", "gpu-0007.eu-west"),
        ("gpu0007.eu-west", "gpu-0007.eu-west"),
        ("GPU-0999.EU-WEST", "gpu-0999.eu-west"),
        ("pu-0500.eu-west", "gpu-0500.eu-west"),
    ],
)
def test_a_slip_of_the_keyboard_is_understood_among_a_thousand_names(asked, meant):
    assert meant in nearest(asked, NAMES)


def test_a_name_that_differs_only_in_its_case_is_the_one_meant():
    assert nearest("CHAT", ["chat", "chat2"]) == ["chat"]


def test_where_nothing_is_alike_it_is_said_what_there_is_but_not_a_thousand_names():
    text = there_is("zebra", NAMES)
    assert text.startswith("there is gpu-0000.eu-west, ")
    assert text.endswith(f" and {1000 - MOST_NAMED} more")
    assert there_is("zebra", []) == "there is none"
    assert there_is("chatt", ["chat", "code"]) == "did you mean chat?"
    assert some(["a", "b"]) == "a, b"


def test_a_name_that_is_too_long_is_cut_when_it_is_said_back():
    assert shown("short") == "'short'"
    assert len(shown("x" * 100_000)) <= MOST_ASKED + 3


@given(st.text(max_size=300), st.lists(st.text(max_size=40), max_size=30))
def test_whatever_is_asked_only_names_that_are_there_are_suggested(asked, names):
    assert set(nearest(asked, names)) <= set(names)
