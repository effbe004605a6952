"""How many requests each proxy gets, by its own access log: what the limits' division follows."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 10.0
"""Requests are counted over windows of this length; the last whole one tells the rate."""
FORGOTTEN_S = 60.0
"""A proxy that sends no entries for so long is not known any more."""


@dataclass(slots=True)
class _Window:
    since: float
    requests: int = 0
    per_second: float | None = None


class Demand:
    """Requests per second by proxy. Time is an argument."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def add(self, node_id: str, requests: int, now: float) -> None:
        """Count requests of a proxy that ended about now."""
        window = self._windows.get(node_id)
        if window is None:
            window = self._windows[node_id] = _Window(now)
        self._close(window, now)
        window.requests += requests

    def rates(self, now: float) -> dict[str, float]:
        """Return what is known: nothing of a proxy in its first window."""
        for node_id, window in list(self._windows.items()):
            if now - window.since > FORGOTTEN_S:
                del self._windows[node_id]
            else:
                self._close(window, now)
        return {
            node_id: window.per_second
            for node_id, window in self._windows.items()
            if window.per_second is not None
        }

    @staticmethod
    def _close(window: _Window, now: float) -> None:
        spent = now - window.since
        if spent >= WINDOW_S and (window.requests or window.per_second is None):
            window.per_second = window.requests / spent
            window.since, window.requests = now, 0
        elif spent >= WINDOW_S:
            window.per_second = 0.0
