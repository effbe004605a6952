"""The latest snapshot of every group of proxies."""

from __future__ import annotations

from collections.abc import Callable

from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import Snapshot

Listener = Callable[[Capability, Snapshot], None]


class SnapshotCache:
    """Group of proxies -> what it is served. Used on the event loop only."""

    def __init__(self) -> None:
        self._snapshots: dict[Capability, Snapshot] = {}
        self._listeners: list[Listener] = []

    def publish(self, capability: Capability, snapshot: Snapshot) -> None:
        """Serve a snapshot from now on and wake all streams of the group; equal content does nothing."""
        previous = self._snapshots.get(capability)
        if previous is not None and previous.versions == snapshot.versions:
            return
        self._snapshots[capability] = snapshot
        for listener in self._listeners:
            listener(capability, snapshot)

    def snapshot(self, capability: Capability) -> Snapshot | None:
        """Return what a group is served, None before the first publication."""
        return self._snapshots.get(capability)

    def subscribe(self, listener: Listener) -> None:
        """Call a function with every new snapshot, within `publish`."""
        self._listeners.append(listener)
