"""What somebody may have meant by a name that nothing has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from heapq import nlargest
from itertools import takewhile

MOST_NAMED = 10
"""Names in one sentence; of more, their number is said."""
MOST_ASKED = 100
"""Characters of a wrong name that are said back."""
_COMPARED = 40
_SUGGESTED = 3
_LIKE = 0.6


def there_is(asked: str, names: Iterable[str]) -> str:
    """Say which names are like the one asked for, or where none is, which there are.

    Args:
        asked: What nothing is called.
        names: What things are called.

    Returns:
        A clause without its end: `did you mean a100-0 or a100-1?` or `there is chat, code`.
    """
    known = list(dict.fromkeys(names))
    near = nearest(asked, known)
    return f"did you mean {' or '.join(near)}?" if near else f"there is {some(known)}"


def nearest(asked: str, names: Iterable[str]) -> Sequence[str]:
    """Return the names that are like the one asked for, the likest first.

    Thousands of names take milliseconds: only those that begin or end alike are compared.
    """
    given = asked[:MOST_ASKED].lower()
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.lower(), name)
    if given in folded:
        return [folded[given]]
    alike = nlargest(_COMPARED, folded, key=lambda name: _ends_alike(given, name))
    return [folded[name] for name in get_close_matches(given, alike, _SUGGESTED, _LIKE)]


def some(names: Sequence[str]) -> str:
    """List names, but not thousands of them."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (", ".join(names[:MOST_NAMED]) or "none") + more


def shown(asked: str) -> str:
    """Quote a wrong name; one that is too long is cut."""
    return repr(asked if len(asked) <= MOST_ASKED else asked[:MOST_ASKED] + "…")


def _ends_alike(one: str, other: str) -> int:
    return _same(one, other) + _same(one[::-1], other[::-1]) - abs(len(one) - len(other))


def _same(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
