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
    starts = [match.end() for match in _INDEXED.finditer(error)]
    return frozenset(
        name for name in candidates if any(error.startswith(name + ":", at) for at in starts)
    )


def _said(error: str, candidates: frozenset[str]) -> frozenset[str]:
    return frozenset(
        name
        for name in candidates
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", error)
    )
