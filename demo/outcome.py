"""What a client got for one request, and whether that counts as a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How the answer was asked for."""

    PLAIN = "plain"
    STREAM = "stream"


class Verdict(StrEnum):
    """What a request comes to, seen by the client."""

    OK = "ok"
    CUT = "cut"
    """A stream that was already running when its instance died: nothing can save it."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """An instance died. Seconds of the system's monotonic clock."""

    engine: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request, from its start to the last byte of its answer."""

    kind: Kind
    proxy: str
    """Name of the Envoy that it was sent through."""
    started_s: float
    """On the system's monotonic clock."""
    ended_s: float
    headers_s: float | None = None
    """When response headers came."""
    first_byte_s: float | None = None
    """When the first byte of the body came."""
    status: int | None = None
    """None when no response came at all."""
    model: str = ""
    """`x-served-model`."""
    is_downgraded: bool = False
    """`x-model-downgraded`."""
    reason: str = ""
    """`x-degrade-reason`."""
    engine: str = ""
    """The instance that answered; empty for static answers."""
    is_complete: bool = False
    """The body ended as its kind must: a JSON answer, or a stream up to `[DONE]` without error."""
    error: str = ""
    """What went wrong, in a few words."""

    @property
    def latency_s(self) -> float:
        """From the start to the last byte."""
        return self.ended_s - self.started_s

    @property
    def wait_s(self) -> float | None:
        """From the start to the first byte of the body; None when there was none."""
        return None if self.first_byte_s is None else self.first_byte_s - self.started_s

    def verdict(self, deaths: Iterable[Death]) -> Verdict:
        """Judge the request, knowing which instances died and when."""
        if self.status == 200 and self.is_complete:
            return Verdict.OK
        if self.kind is Kind.STREAM and self.status == 200 and self.headers_s is not None:
            for death in deaths:
                died_while_running = (
                    self.headers_s <= death.at_s + SKEW_S <= self.ended_s + 2 * SKEW_S
                )
                if death.engine == self.engine and died_while_running:
                    return Verdict.CUT
        return Verdict.FAILED


SKEW_S = 0.05
"""Engine, proxy and client see the same death at slightly different times."""
