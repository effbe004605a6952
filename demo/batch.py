"""What happens inside an inference engine: slots, KV blocks, a queue, preemption.

Pure and deterministic: time comes in as `advance(dt)`, nothing is read from the outside. The rules
are those of vLLM's scheduler as observed on a real one: first come, first served; a running request
takes one more KV block whenever its tokens cross a block border; when no block is free the request
admitted last is preempted: it loses its blocks, goes back to the head of the queue, and its tokens
must be prefilled again.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from dataclasses import dataclass, field

# The bucket bounds of vLLM's histograms, without those that no simulated request reaches.
FIRST_TOKEN_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
)
WHOLE_REQUEST_BOUNDS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)


class RequestTooLongError(ValueError):
    """The prompt leaves no room for a single token in the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """The size and speed of an engine."""

    slots: int = 16
    """Requests computed at once (vLLM's max_num_seqs)."""
    kv_tokens: int = 4096
    """Tokens that fit into the KV cache."""
    block_tokens: int = 16
    tokens_per_s: float = 40.0
    """Generation speed of each running request."""
    prefill_tokens_per_s: float = 20_000.0
    """Prompt tokens read per second, shared by all requests."""
    context_tokens: int = 4096
    """Longest prompt plus answer."""

    def __post_init__(self) -> None:
        """Refuse sizes with which nothing could ever run."""
        for name in ("slots", "kv_tokens", "block_tokens", "context_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("tokens_per_s", "prefill_tokens_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.kv_tokens < 2 * self.block_tokens:
            raise ValueError(
                f"kv_tokens is {self.kv_tokens}; expected at least two blocks "
                f"({2 * self.block_tokens})"
            )

    @property
    def blocks(self) -> int:
        """How many KV blocks there are."""
        return self.kv_tokens // self.block_tokens

    @property
    def longest(self) -> int:
        """The most tokens that one request may have: a lone request always fits."""
        return min(self.context_tokens, self.blocks * self.block_tokens)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through the engine."""

    id: int
    prompt_tokens: int
    max_tokens: int
    arrived_s: float
    """On the batch's own clock."""
    generated: int = 0
    blocks: int = 0
    to_prefill: float = 0.0
    """Tokens still to be read before the next one can be generated."""
    credit: float = 0.0
    """Fraction of the next token."""
    first_token_s: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens that it holds in the KV cache."""
        return self.prompt_tokens + self.generated

    @property
    def is_complete(self) -> bool:
        """Whether it has all the tokens it asked for."""
        return self.generated >= self.max_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What one `advance` did."""

    emitted: tuple[tuple[Sequence, int], ...]
    """Sequences that got tokens, and how many."""
    finished: tuple[Sequence, ...]


class Histogram:
    """Counts of observations up to each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, count of observations up to it), the last bound being +Inf."""
        labels = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(labels, map(float, itertools.accumulate(self.counts)), strict=True))


@dataclass(slots=True)
class Counters:
    """Totals since the engine started."""

    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    whole_request_s: Histogram = field(default_factory=lambda: Histogram(WHOLE_REQUEST_BOUNDS_S))


class Batch:
    """Continuous batching with paged KV memory."""

    def __init__(self, spec: BatchSpec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.free_blocks = spec.blocks
        self.overfull_s = 0.0
        """How long the KV cache has been too full to admit the head of the queue."""
        self.clock_s = 0.0
        self._ids = itertools.count()

    @property
    def kv_ratio(self) -> float:
        """Used share of the KV cache, 0-1."""
        return 1.0 - self.free_blocks / self.spec.blocks

    def submit(self, *, prompt_tokens: int, max_tokens: int) -> Sequence:
        """Queue a request; its answer is cut to what fits into the context, as vLLM does.

        Raises:
            RequestTooLongError: the prompt alone fills the context.
        """
        room = self.spec.longest - prompt_tokens
        if room < 1:
            raise RequestTooLongError(
                f"the prompt has {prompt_tokens} tokens; expected less than {self.spec.longest}"
            )
        sequence = Sequence(
            id=next(self._ids),
            prompt_tokens=prompt_tokens,
            max_tokens=min(max_tokens, room),
            arrived_s=self.clock_s,
        )
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Forget a request whose client went away; one that already ended is left alone."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._free(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return
        self.counters.aborted += 1

    def advance(self, dt: float) -> Step:
        """Let `dt` seconds pass."""
        self.clock_s += dt
        emitted: list[tuple[Sequence, int]] = []
        preemptions = self.counters.preemptions
        budget = self.spec.prefill_tokens_per_s * dt
        for sequence in list(self.running):
            if not sequence.blocks:
                continue  # preempted earlier in this step
            if sequence.to_prefill > 0:
                read = min(budget, sequence.to_prefill)
                sequence.to_prefill -= read
                budget -= read
            elif count := self._generate(sequence, dt):
                emitted.append((sequence, count))
        finished = tuple(each for each in self.running if each.is_complete)
        for sequence in finished:
            self._finish(sequence)
        if self.counters.preemptions == preemptions:
            self._admit()
        starved = bool(self.waiting) and len(self.running) < self.spec.slots
        self.overfull_s = self.overfull_s + dt if starved else 0.0
        return Step(tuple(emitted), finished)

    def _generate(self, sequence: Sequence, dt: float) -> int:
        """Give a sequence its tokens of this step; fewer when memory runs out."""
        sequence.credit += self.spec.tokens_per_s * dt
        count = 0
        while sequence.credit >= 1.0 and not sequence.is_complete:
            if not self._grow(sequence):
                break
            sequence.credit -= 1.0
            sequence.generated += 1
            count += 1
        self.counters.generation_tokens += count
        if count and sequence.first_token_s is None:
            sequence.first_token_s = self.clock_s
            self.counters.first_token_s.observe(self.clock_s - sequence.arrived_s)
        return count

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for one more token, preempting the youngest; False if that is this one."""
        if self._blocks_for(sequence.tokens + 1) <= sequence.blocks:
            return True
        while self.free_blocks == 0:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self.free_blocks -= 1
        sequence.blocks += 1
        return True

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.spec.slots:
            head = self.waiting[0]
            # Room for the next token too, or the newcomer would be preempted in its first step.
            needed = self._blocks_for(head.tokens + 1)
            if needed > self.free_blocks:
                return
            self.waiting.popleft()
            self.free_blocks -= needed
            head.blocks = needed
            head.to_prefill = float(head.tokens)
            self.running.append(head)
            if head.generated == 0:
                self.counters.prompt_tokens += head.prompt_tokens

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.credit = 0.0
        self.waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _finish(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        self.counters.finished += 1
        self.counters.whole_request_s.observe(self.clock_s - sequence.arrived_s)

    def _free(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_tokens)
