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
    heard_at: float
    requests: int = 0
    per_second: float | None = None


class Demand:
    """Requests per second by proxy. Time is an argument."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self._forget_at = float("-inf")

    def add(self, node_id: str, requests: int, now: float) -> None:
        """Count requests of a proxy that ended about now."""
        self._forget(now)
        window = self._windows.get(node_id)
        if window is None:
            window = self._windows[node_id] = _Window(now, now)
        _close(window, now)
        window.heard_at = now
        window.requests += requests

    def rates(self, now: float) -> dict[str, float]:
        """Return what is known: nothing of a proxy in its first window."""
        self._forget(now)
        for window in self._windows.values():
            _close(window, now)
        return {
            node_id: window.per_second
            for node_id, window in self._windows.items()
            if window.per_second is not None
        }

    def _forget(self, now: float) -> None:
        """Drop proxies that fell silent; not at every call, since there may be thousands."""
        if now < self._forget_at:
            return
        self._windows = {
            node_id: window
            for node_id, window in self._windows.items()
            if now - window.heard_at <= FORGOTTEN_S
        }
        self._forget_at = now + WINDOW_S / 2


def _close(window: _Window, now: float) -> None:
    spent = now - window.since
    if spent >= WINDOW_S:
        window.per_second = window.requests / spent
        window.since, window.requests = now, 0
