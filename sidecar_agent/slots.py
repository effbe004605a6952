"""The newest sample of every instance, and which of them are worth sending now (no I/O).

Routing telemetry has no history: a slot of size one per instance, newest wins. What an outage kept
from being sent is gone, and counted; after a reconnect only what is fresh goes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sidecar_agent.join import Sample

KV_STEP: Final = 0.01
"""A KV ratio that moved by one point is worth a message."""
MAX_AGE_INTERVALS: Final = 3
"""Older samples are not sent: the control plane holds on its own, and stale news delays fresh."""


@dataclass(frozen=True, slots=True)
class _Sent:
    sample: Sample
    at: float


def moved(before: Sample, after: Sample) -> bool:
    """Return whether `after` says something that should not wait for the interval."""
    old, new = before.engine, after.engine
    return (
        (before.draining, before.restarts, before.out_of_memory)
        != (after.draining, after.restarts, after.out_of_memory)
        or (old.state, old.waiting, old.running) != (new.state, new.waiting, new.running)
        or _step(old.kv_ratio, new.kv_ratio)
        or _health(before) != _health(after)
    )


def _step(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) >= KV_STEP - 1e-9


def _health(sample: Sample) -> str | None:
    return None if sample.gpu is None else sample.gpu.health.value


class Slots:
    """One slot per instance; all times are monotonic seconds."""

    def __init__(self, *, interval_s: float) -> None:
        self.interval_s = interval_s
        self.superseded = 0
        """Samples worth sending that a newer one replaced before they could be sent."""
        self.expired = 0
        """Samples that got too old to send."""
        self._latest: dict[str, Sample] = {}
        self._sent: dict[str, _Sent] = {}

    def offer(self, sample: Sample) -> bool:
        """Put a sample in its slot; return whether it should go out at once."""
        waiting = self._latest.get(sample.instance)
        if waiting is not None and self._worth(waiting):
            self.superseded += 1
        self._latest[sample.instance] = sample
        return self._worth(sample)

    def take(self, now: float) -> list[Sample]:
        """Remove and return the samples that are due at `now`."""
        batch: list[Sample] = []
        for instance, sample in list(self._latest.items()):
            if now - sample.observed_at > MAX_AGE_INTERVALS * self.interval_s:
                del self._latest[instance]
                self.expired += 1
            elif self._due_at(sample) <= now:
                del self._latest[instance]
                self._sent[instance] = _Sent(sample, now)
                batch.append(sample)
        return batch

    def next_due(self) -> float:
        """Return when a waiting sample becomes due; infinity if none waits."""
        return min(map(self._due_at, self._latest.values()), default=math.inf)

    def forget_sent(self) -> None:
        """Start a new stream: everything that is fresh is worth sending."""
        self._sent.clear()

    def _worth(self, sample: Sample) -> bool:
        sent = self._sent.get(sample.instance)
        return sent is None or moved(sent.sample, sample)

    def _due_at(self, sample: Sample) -> float:
        sent = self._sent.get(sample.instance)
        if sent is None or moved(sent.sample, sample):
            return -math.inf
        return sent.at + self.interval_s
