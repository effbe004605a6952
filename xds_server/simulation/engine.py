"""One simulated engine: slots, a KV cache that grows with every token, a queue, preemption, OOM.

Between two events everything grows in straight lines, so the engine computes the moment of its next
event (a request finishes, or the cache is full) instead of stepping through tokens. It behaves like
vLLM V1: requests start in order of arrival when a slot and room for the prompt are free; when the
cache is full the youngest running request is preempted: its cache is freed, it returns to the head
of the queue and will be computed again, prompt and tokens so far.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from xds_server.core.sample import EngineFacts, EngineState
from xds_server.simulation.workload import Lengths, Profile, Request

_BLOCK_TOKENS = 16
"""vLLM's block size; the last block of a request is half full on average."""
_ADMIT_BELOW = 0.99
"""vLLM keeps 1 % of the cache free when it starts a request; else a preempted one would come back at once."""
_STEADY = Profile(points=((0.0, 1.0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What one simulated engine can do."""

    slots: int
    configured_slots: int | None = None
    """What the user's configuration says, where it is wrong."""
    tokens_per_s: float = 25.0
    """Generated per request; the batch is assumed to fit, so that it does not depend on the load."""
    prefill_tokens_per_s: float = 8000.0
    kv_tokens: float | None = None
    """Size of the KV cache; None = `kv_headroom` times what full slots occupy on average."""
    kv_headroom: float = 1.15
    slowdown: Profile = _STEADY
    """Factor on the time that tokens take; drifts model longer contexts or a hot GPU."""

    def service_s(self, lengths: Lengths) -> float:
        """Return the mean time a request occupies a slot, in seconds, without slowdown."""
        return (
            lengths.prompt.mean / self.prefill_tokens_per_s
            + lengths.output.mean / self.tokens_per_s
        )

    def kv_capacity(self, lengths: Lengths) -> float:
        """Return the size of the KV cache in tokens."""
        if self.kv_tokens is not None:
            return self.kv_tokens
        per_request = lengths.prompt.mean + lengths.output.length_biased_mean / 2.0
        return self.slots * (per_request + _BLOCK_TOKENS / 2.0) * self.kv_headroom


class Engine:
    """The state of one engine; `advance` it before looking at it.

    Args:
        spec: What it can do.
        lengths: Sizes of the requests, for the default size of the KV cache.
    """

    def __init__(self, *, spec: EngineSpec, lengths: Lengths) -> None:
        self.spec = spec
        self.kv_capacity = spec.kv_capacity(lengths)
        self.is_up = True
        self.restarts = 0
        self.out_of_memory = False
        self.running: dict[int, Request] = {}
        self.waiting: deque[Request] = deque()
        self.busy_slot_s = 0.0
        """Slot-seconds computed since the beginning; never reset."""
        self.finished_total = 0
        self.preemptions_total = 0
        self._attempts = 0
        self._finishes: list[tuple[float, int]] = []
        self._at = 0.0
        self._kv = 0.0
        self._growth = 0.0
        self._prompt_tokens = 0.0
        self._generated = 0.0

    def next_at(self) -> float:
        """Return the time of the next event inside the engine; infinity when none is due."""
        while self._finishes and self._finishes[0][1] not in self.running:
            heappop(self._finishes)
        finish = self._finishes[0][0] if self._finishes else inf
        if self._growth <= 0.0:
            return finish
        full = self._at + max(0.0, self.kv_capacity - self._kv) / self._growth
        return min(finish, full)

    def advance(self, now: float) -> None:
        """Let everything happen that is due until `now`."""
        while (at := self.next_at()) <= now:
            self._flow(at)
            if self._finishes and self._finishes[0][0] <= at:
                self._finish(heappop(self._finishes)[1])
            else:
                self._preempt()
            self._admit()
        self._flow(now)

    def offer(self, request: Request, now: float) -> None:
        """Take a request into the queue, and start it when there is room."""
        self.advance(now)
        self.waiting.append(request)
        self._admit()

    def crash(self, now: float) -> tuple[list[Request], list[Request]]:
        """Run out of memory.

        Returns:
            The requests whose streams broke, and those that only waited (a proxy retries these).
        """
        self.advance(now)
        broken, unserved = list(self.running.values()), list(self.waiting)
        self.running.clear()
        self.waiting.clear()
        self._finishes.clear()
        self._kv = self._growth = 0.0
        self.is_up = False
        self.out_of_memory = True
        return broken, unserved

    def restart(self, now: float) -> None:
        """Be ready again, empty, with counters at zero."""
        self.advance(now)
        self.is_up = True
        self.out_of_memory = False
        self.restarts += 1
        self.finished_total = self.preemptions_total = 0
        self._prompt_tokens = self._generated = 0.0

    @property
    def kv_ratio(self) -> float:
        """Used share of the KV cache, 0-1, as of the last `advance`."""
        return min(1.0, max(0.0, self._kv / self.kv_capacity))

    def facts(self, now: float) -> EngineFacts:
        """Return what an agent would read; a dead engine has no numbers."""
        self.advance(now)
        if not self.is_up:
            return EngineFacts(
                state=EngineState.DOWN, restarts=self.restarts, out_of_memory=self.out_of_memory
            )
        return EngineFacts(
            state=EngineState.UP,
            kv_ratio=self.kv_ratio,
            waiting=float(len(self.waiting)),
            running=float(len(self.running)),
            preemptions_total=float(self.preemptions_total),
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated,
            finished_total=float(self.finished_total),
            kv_capacity_tokens=self.kv_capacity,
            restarts=self.restarts,
        )

    def _flow(self, now: float) -> None:
        """Let the straight lines run to `now`."""
        elapsed = now - self._at
        if elapsed > 0.0:
            grown = self._growth * elapsed
            self._kv += grown
            self._generated += grown
            self.busy_slot_s += len(self.running) * elapsed
            self._at = now

    def _admit(self) -> None:
        while self.waiting and self.is_up and len(self.running) < self.spec.slots:
            request = self.waiting[0]
            needed = request.prompt + _BLOCK_TOKENS / 2.0
            # One that does not fit into an empty cache would block for ever: real engines refuse it.
            if self.running and self._kv + needed > self.kv_capacity * _ADMIT_BELOW:
                return
            self.waiting.popleft()
            slowdown = self.spec.slowdown.at(self._at)
            run_s = slowdown * (
                request.prompt / self.spec.prefill_tokens_per_s
                + request.output / self.spec.tokens_per_s
            )
            if request.started_at is None:
                request.started_at = self._at
            self._attempts += 1
            request.attempt = self._attempts
            request.run_started_at = self._at
            request.tokens_per_s = request.output / run_s
            self._kv += needed
            self._growth += request.tokens_per_s
            self._prompt_tokens += request.prompt
            self.running[request.attempt] = request
            heappush(self._finishes, (self._at + run_s, request.attempt))

    def _finish(self, attempt: int) -> None:
        request = self.running.pop(attempt)
        self._release(request, request.output)
        self.finished_total += 1

    def _preempt(self) -> None:
        """Take the youngest running request back to the head of the queue."""
        if len(self.running) == 1:
            # Alone in the cache and still too long: it ends at the limit of the context.
            self._finish(next(iter(self.running)))
            return
        _, request = self.running.popitem()
        generated = min(request.output, request.tokens_per_s * (self._at - request.run_started_at))
        self._release(request, generated)
        request.prompt += generated
        request.output = max(1.0, request.output - generated)
        self.waiting.appendleft(request)
        self.preemptions_total += 1

    def _release(self, request: Request, generated: float) -> None:
        self._growth -= request.tokens_per_s
        self._kv -= request.prompt + _BLOCK_TOKENS / 2.0 + generated
        if not self.running:
            self._growth = self._kv = 0.0
