"""Which resources of a refused response are at fault (pure).

Neither protocol tells it in a field, but clients name the resource in the text of the error:

    Envoy, CDS and LDS   Error adding/updating cluster(s) chat: ...
    Envoy, validation    the resource as text, its name in a line of its own: `cluster_name: "chat"`
    gRPC                 xDS response validation errors: [resource index 0: chat: INVALID_ARGUMENT: ...

Some errors name none ("Invalid duration: ..."). Then every change of the response is under suspicion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

MAX_SEARCHED_CHARS = 100_000

_OWN_NAME = re.compile(r'^(?:cluster_)?name: "([^"]+)"', re.MULTILINE)
_INDEXED = re.compile(r"resource index \d+: ")
_WORD = re.compile(r"[\w.-]+")
_GOES_ON = re.compile(r"[\w-]|\.\w")
"""What makes a name the start of a longer one; a dot at the end of a sentence does not."""


def culprits(error: str, changed: Iterable[str]) -> frozenset[str]:
    """Return the changed resources that the text holds responsible; none when it names none.

    A text may mention other resources (a chain lists its members), so the most telling form wins.

    Args:
        error: `error_detail.message`.
        changed: Names of the resources whose content was new for the client.
    """
    candidates = frozenset(changed)
    error = error[:MAX_SEARCHED_CHARS]
    ways: tuple[Callable[[str, frozenset[str]], frozenset[str]], ...] = (_dumped, _indexed, _said)
    for way in ways:
        found = way(error, candidates)
        if found:
            return found
    return frozenset()


def _dumped(error: str, candidates: frozenset[str]) -> frozenset[str]:
    return candidates.intersection(_OWN_NAME.findall(error))


def _indexed(error: str, candidates: frozenset[str]) -> frozenset[str]:
    longest = max(map(len, candidates), default=0)
    found: set[str] = set()
    for match in _INDEXED.finditer(error):
        start = match.end()
        last = start + longest + 1
        end = error.find(":", start, last)
        while end >= 0:
            found.add(error[start:end])
            end = error.find(":", end + 1, last)
    return candidates & found


def _said(error: str, candidates: frozenset[str]) -> frozenset[str]:
    """Find names that stand in the text by themselves, not as parts of others.

    The text is read once, however many names there are: a client makes it up, and a search for each of
    thousands of names held everything up. (All names start with a letter or a digit, that is: with a word.)
    """
    lengths = sorted({len(name) for name in candidates})
    found: set[str] = set()
    for word in _WORD.finditer(error):
        start = word.start()
        for length in lengths:
            name = error[start : start + length]
            if name in candidates and not _GOES_ON.match(error, start + length):
                found.add(name)
    return frozenset(found)
