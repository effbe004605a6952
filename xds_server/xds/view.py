"""What a client holds of one type, as the server believes.

A view is immutable and compared by identity, so that a thousand streams in the same state share one object
and the answer to "what has to be sent to get from here to the new snapshot" is found once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xds_server.resources.snapshot import Resource

UNKNOWN = ""
"""Version of a resource of which the client may hold anything, or nothing: any content is new to it, and
its absence has to be told."""


class View:
    """Resources a client has, by name."""

    __slots__ = ("_needs", "held")

    def __init__(self, held: Mapping[str, Resource]) -> None:
        self.held = held
        self._needs: frozenset[str] | None = None

    @property
    def needs(self) -> frozenset[str]:
        """Names of all clusters that the held resources refer to."""
        if self._needs is None:
            self._needs = frozenset().union(*(each.needs for each in self.held.values()))
        return self._needs

    def doubting(self, names: frozenset[str]) -> View:
        """Return the view in which nobody knows what the client holds of these names."""
        doubted = {
            name: replace(self.held.get(name, Resource(name, UNKNOWN, b"")), version=UNKNOWN)
            for name in names
        }
        return View({**self.held, **doubted})

    def without(self, names: frozenset[str]) -> View:
        """Return the view in which the client does not hold these names."""
        return View({name: each for name, each in self.held.items() if name not in names})


EMPTY = View({})
