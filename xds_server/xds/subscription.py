"""What a client asked for, of one type on one stream: names and wildcards (R15, R16, R29, R32).

Pure values. The two wildcards live only here: the explicit name `*`, and the legacy one, a client that has
never named anything. See "How the client specifies what resources to return" of Envoy's xDS protocol page.
"""

from __future__ import annotations

from dataclasses import dataclass

from xds_server.resources.snapshot import CLUSTER, LISTENER

WILDCARD = "*"

FULL_STATE = frozenset({CLUSTER, LISTENER})
"""Types whose SotW responses hold everything subscribed, so that absence deletes (R20). Only they have
the legacy wildcard: for the others an empty first request means nothing, which is what clients mean (R15)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The names a client wants, by name or by wildcard."""

    names: frozenset[str] = frozenset()
    """Names asked for explicitly, without `*`."""
    wildcard: bool = False
    """Everything is wanted, whether said by `*` or by naming nothing."""
    legacy: bool = False
    """The wildcard was never said: naming anything in SotW ends it."""

    def wants(self, name: str) -> bool:
        """Return whether a resource of this name is to be sent."""
        return self.wildcard or name in self.names


NOTHING = Subscription()
_LEGACY = Subscription(wildcard=True, legacy=True)


def state_of_the_world(
    previous: Subscription | None, names: frozenset[str], *, type_url: str
) -> Subscription:
    """Return what a SotW request asks for: its names replace the previous ones.

    Args:
        previous: What the stream asked for before, None in its first request of the type.
        names: `resource_names` of the request.
        type_url: The type; only CDS and LDS have the legacy wildcard.
    """
    if not names:
        implied = type_url in FULL_STATE if previous is None else previous.legacy
        return _LEGACY if implied else NOTHING
    explicit = WILDCARD in names
    kept = names - {WILDCARD} if explicit else names
    wanted = Subscription(kept, explicit)
    return previous if previous == wanted else wanted


def incremental(
    previous: Subscription | None,
    *,
    subscribe: frozenset[str],
    unsubscribe: frozenset[str],
    type_url: str,
) -> Subscription:
    """Return what is asked for after a delta request: names are added, then taken away.

    Unsubscribing what was never subscribed changes nothing (R32). The legacy wildcard survives later
    names and ends only by unsubscribing from `*` (R29).
    """
    if previous is None:
        previous = _LEGACY if not subscribe and type_url in FULL_STATE else NOTHING
    if not subscribe and not unsubscribe:
        return previous
    names = (previous.names | subscribe) - unsubscribe - {WILDCARD}
    wildcard = (previous.wildcard or WILDCARD in subscribe) and WILDCARD not in unsubscribe
    return Subscription(names, wildcard, previous.legacy and wildcard)
