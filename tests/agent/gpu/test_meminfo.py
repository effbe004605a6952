"""The pure parsers of what the kernel says about memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.gpu.meminfo import (
    MeminfoError,
    SystemMemory,
    capped,
    parse_cgroup_bytes,
    parse_meminfo,
)

PAGE = """MemTotal:       131072000 kB
MemFree:          1024000 kB
MemAvailable:    98304000 kB
Buffers:           10240 kB
HugePages_Total:       0
"""


def test_available_memory_counts_and_free_memory_does_not():
    assert parse_meminfo(PAGE) == SystemMemory(
        total_bytes=131072000 * 1024, available_bytes=98304000 * 1024
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line MemTotal"),
        ("MemTotal: 5 kB\nMemFree: 5 kB\n", "no line MemAvailable"),
        ("MemTotal: many kB\n", "MemTotal is 'many kB', expected an amount in kB"),
        ("MemTotal: 5\n", "MemTotal is '5', expected an amount in kB"),
        ("MemTotal: -5 kB\n", "MemTotal is '-5 kB'"),
        ("MemTotal: ²0 kB\n", "MemTotal is '²0 kB'"),
    ],
    ids=["empty", "old kernel", "words", "no unit", "negative", "not ascii"],
)
def test_a_page_that_lacks_something_is_told_with_what_was_expected(text, said):
    with pytest.raises(MeminfoError, match=said):
        parse_meminfo(text)


@given(st.text())
def test_no_text_breaks_the_parser(text):
    with pytest.raises(MeminfoError, match="/proc/meminfo: "):
        parse_meminfo(text)


def test_max_is_no_limit():
    assert parse_cgroup_bytes("max\n") is None
    assert parse_cgroup_bytes("1073741824\n") == 1 << 30


@pytest.mark.parametrize("text", ["", "lots", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_refused(text):
    with pytest.raises(MeminfoError, match="expected bytes or max"):
        parse_cgroup_bytes(text)


@pytest.mark.parametrize(
    ("limit", "used", "total", "available"),
    [
        (None, 5, 100, 60),
        (200, 5, 100, 60),
        (50, 10, 50, 40),
        (80, 5, 80, 60),
        (50, 70, 50, 0),
        (50, None, 50, 50),
    ],
    ids=["no limit", "larger", "smaller", "host is fuller", "over its limit", "use unknown"],
)
def test_a_cgroup_caps_the_host(limit, used, total, available):
    host = SystemMemory(total_bytes=100, available_bytes=60)
    assert capped(host, limit_bytes=limit, used_bytes=used) == SystemMemory(
        total_bytes=total, available_bytes=available
    )
