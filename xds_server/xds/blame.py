"""Which resources of a refused response are at fault (pure).

Neither protocol says it in a field that servers can rely on; Envoy and gRPC name the resources in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def culprits(error: str, changed: Iterable[str]) -> frozenset[str]:
    """Return the changed resources that the text names; all of them when it names none.

    Args:
        error: `error_detail.message`.
        changed: Names of the resources whose content was new for the client.
    """
    candidates = frozenset(changed)
    named = frozenset(name for name in candidates if _names(error, name))
    return named or candidates


def _names(error: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", error) is not None
