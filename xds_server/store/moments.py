"""Spans and points of time as people write them: `10m`, `2026-03-01T03:12:00Z`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")
SPAN = "a span of time like 90s, 10m or 1h30m"
MOMENT = f"{SPAN} (ago), a time like 2026-03-01T03:12:00Z, or Unix seconds"


def parse_span(text: str) -> float:
    """Return the seconds of a span.

    Raises:
        ValueError: It is not one; the text says what is.
    """
    given = text.strip().lower()
    if not given.isascii() or not _SPAN.fullmatch(given):
        raise ValueError(f"{text!r}: expected {SPAN}")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(given))
    if not math.isfinite(seconds) or seconds > 1e10:
        raise ValueError(f"{text!r}: expected {SPAN}")
    return seconds


def parse_moment(text: str, now_unix_s: float) -> float:
    """Return the Unix seconds of a point of time; one without a zone is in UTC.

    Raises:
        ValueError: It is not one; the text says what is.
    """
    given = text.strip()
    try:
        return now_unix_s - parse_span(given)
    except ValueError:
        pass
    try:
        seconds = float(given)
    except ValueError:
        pass
    else:
        if math.isfinite(seconds) and 0 <= seconds < 1e11:
            return seconds
        raise ValueError(f"{text!r}: expected {MOMENT}")
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r}: expected {MOMENT}") from error


def show_moment(unix_s: float) -> str:
    """Write a point of time in UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(unix_s, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_s}"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
