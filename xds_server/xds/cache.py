"""The latest snapshot of every group of proxies, and each proxy's part of the limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import Snapshot
from xds_server.xds.node import Proxy

Listener = Callable[[Capability, Snapshot], None]
PartListener = Callable[[Collection[str]], None]


class SnapshotCache:
    """Proxy -> what it is served. Used on the event loop only.

    Proxies of one capability and equal parts of the limits share one snapshot object.
    """

    def __init__(self) -> None:
        self._snapshots: dict[Capability, Snapshot] = {}
        self._parts: Mapping[str, float] | None = None
        self._for_parts: dict[tuple[Capability, float], Snapshot] = {}
        self._listeners: list[Listener] = []
        self._part_listeners: list[PartListener] = []

    def publish(self, capability: Capability, snapshot: Snapshot) -> None:
        """Serve a snapshot from now on and wake all streams of the group; equal content does nothing."""
        previous = self._snapshots.get(capability)
        if previous is not None and previous.is_same(snapshot):
            return
        self._snapshots[capability] = snapshot
        self._for_parts.clear()
        for listener in self._listeners:
            listener(capability, snapshot)

    def divide(self, parts: Mapping[str, float]) -> None:
        """Give proxies these parts of the limits, by node id, and wake the streams of those whose part is another.

        From the first call on, a proxy without a part is served nothing as long as there are limits.
        """
        before, self._parts = self._parts or {}, dict(parts)
        self._for_parts.clear()
        changed = [name for name, part in parts.items() if before.get(name) != part]
        for listener in self._part_listeners:
            listener(changed)

    @property
    def has_limits(self) -> bool:
        """Whether any group is served limiters."""
        return any(each.limiters is not None for each in self._snapshots.values())

    def snapshot(self, capability: Capability) -> Snapshot | None:
        """Return what a group is served, None before the first publication."""
        return self._snapshots.get(capability)

    def served(self, proxy: Proxy) -> Snapshot | None:
        """Return what one proxy is served; None before the first publication, or before it has a part."""
        snapshot = self._snapshots.get(proxy.capability)
        if snapshot is None or snapshot.limiters is None or self._parts is None:
            return snapshot
        part = self.part(proxy)
        if part is None:
            return None
        key = (proxy.capability, part)
        found = self._for_parts.get(key)
        if found is None:
            found = self._for_parts[key] = snapshot.for_part(part)
        return found

    def part(self, proxy: Proxy) -> float | None:
        """Return what a proxy may admit of every limit, 0-1; None where nothing is limited, or it has no part."""
        snapshot = self._snapshots.get(proxy.capability)
        if snapshot is None or snapshot.limiters is None:
            return None
        return 1.0 if self._parts is None else self._parts.get(proxy.id)

    def subscribe(self, listener: Listener, *, parts: PartListener | None = None) -> None:
        """Call functions with what is new.

        Args:
            listener: Gets every new snapshot, within `publish`.
            parts: Gets the ids of the proxies whose part of the limits changed, within `divide`.
        """
        self._listeners.append(listener)
        if parts is not None:
            self._part_listeners.append(parts)
