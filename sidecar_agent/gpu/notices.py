"""Logging the first occurrence and every change, never every poll."""

from __future__ import annotations

import threading


class Notices:
    """Remembers what was last said about a subject; any thread."""

    def __init__(self) -> None:
        self._said: dict[str, object] = {}
        self._lock = threading.Lock()

    def changed(self, subject: str, value: object, *, initially: object = None) -> bool:
        """Tell whether this differs from what was said last, and remember it as said.

        Args:
            subject: What the notice is about, e.g. "driver" or a GPU's UUID.
            value: What holds now; compared by equality.
            initially: What counts as said before anything was, so that a normal start is silent.
        """
        with self._lock:
            if self._said.get(subject, initially) == value:
                return False
            self._said[subject] = value
            return True
