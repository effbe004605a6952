"""Times as people write them."""

from __future__ import annotations

import pytest

from xds_server.store.moments import parse_moment, parse_span, show_moment

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600.0), ("90s", 90.0), ("1h30m", 5400.0), ("250ms", 0.25), ("2d", 172800.0),
     ("1w", 604800.0), (" 1.5H ", 5400.0), ("0s", 0.0)],
)  # fmt: skip
def test_spans_are_read(text, seconds):
    assert parse_span(text) == seconds
    assert parse_moment(text, NOW) == NOW - seconds


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("1795987103.5", 1795987103.5),
        ("2026-11-29T21:18:23Z", 1795987103.0),
        ("2026-11-29T21:18:23", 1795987103.0),
        ("2026-11-29 22:18:23+01:00", 1795987103.0),
        ("2026-11-29", 1795910400.0),
    ],
)
def test_points_of_time_are_read(text, unix_s):
    assert parse_moment(text, NOW) == unix_s


@pytest.mark.parametrize(
    "text",
    ["", "soon", "10", "-5m", "5 m", "m", "1e3s", "\u0661m", "9" * 400 + "w", "1m1"],
)
def test_what_is_no_span_is_refused(text):
    with pytest.raises(ValueError, match="expected a span of time like 90s"):
        parse_span(text)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1e300", "2026-13-01", "yesterday"])
def test_what_is_no_point_of_time_is_refused(text):
    with pytest.raises(ValueError, match="or Unix seconds"):
        parse_moment(text, NOW)


def test_points_of_time_are_written_in_utc():
    assert show_moment(1795987103.2695) == "2026-11-29T21:18:23.269Z"
    assert show_moment(1e30) == "1e+30"
