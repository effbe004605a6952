"""The last seconds in slices, each of which is forgotten as a whole. Time is an argument, and there is no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Slice(Protocol):
    """What fell into a part of a window."""

    until: float
    """What ends later belongs to the next one."""


_S = TypeVar("_S", bound=Slice)


class Slices(Generic[_S]):
    """A window of `span_s`, cut into `count` slices: it is right to the length of one."""

    def __init__(self, span_s: float, count: int, make: Callable[[float], _S]) -> None:
        """Prepare; `make` returns an empty slice that ends at a time."""
        self.span_s = span_s
        self.slice_s = span_s / count
        self._make = make
        self._kept: deque[_S] = deque()

    def at(self, now: float) -> _S:
        """Return the slice that counts now. Time that goes backward counts as no time."""
        kept = self._kept
        if not kept or now >= kept[-1].until:
            self.forget(now)
            kept.append(self._make(now + self.slice_s))
        return kept[-1]

    def forget(self, now: float) -> None:
        """Forget what is older than the window."""
        kept = self._kept
        while kept and kept[0].until + self.span_s <= now:
            kept.popleft()

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def spanned_s(self, now: float) -> float:
        """Return the time that what is kept, which is something, stands for: less than the window at first."""
        began = self._kept[0].until - self.slice_s
        return max(self.slice_s, min(self.span_s + self.slice_s, now - began))

    def __iter__(self) -> Iterator[_S]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
