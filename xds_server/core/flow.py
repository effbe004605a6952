"""What flows through one instance: requests admitted, requests completed, slots kept busy.

Each new sample adds one interval to exponentially weighted sums. A rate is the ratio of two of them,
so it is right from the first interval on and needs no fixed window:

* admitted requests = growth of `finished_total` + change of (running + waiting): exact at any
  sampling interval, because a request is either still inside or has been counted;
* completions per busy slot-second = 1 / mean service time, whatever the utilization was.

An interval about which the engine said nothing adds nothing: missing is neither zero nor bad. An
engine that says it is not up admits nothing, which is a fact, and its rate decays just as fast as
the rates of the instances that took over its requests rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from xds_server.core.policy import SpillPolicy
from xds_server.core.sample import EngineState, Sample

_ADMITS_NOTHING = frozenset({EngineState.DOWN, EngineState.LOADING, EngineState.SLEEPING})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFlow:
    """Exponentially weighted sums over the samples of one instance.

    `fast` sums forget with `SpillPolicy.demand_smoothing_s`, the others with `capacity_window_s`.
    """

    at: float
    """`observed_at` of the last sample that was added."""
    fast_admitted: float = 0.0
    fast_s: float = 0.0
    """Seconds that `fast_admitted` covers."""
    admitted: float = 0.0
    admitted_s: float = 0.0
    """Seconds that `admitted` covers."""
    completed: float = 0.0
    busy_slot_s: float = 0.0
    """Slot-seconds of computing that `completed` took."""
    tokens: float = 0.0
    """Prompt and generated tokens; covers the same intervals as `token_requests`."""
    token_requests: float = 0.0
    """Requests completed in the intervals of `tokens`."""

    @property
    def fast_rate(self) -> float | None:
        """Requests/s admitted, over the last few seconds; None when nothing is known."""
        return self.fast_admitted / self.fast_s if self.fast_s > 0.0 else None

    @property
    def rate(self) -> float | None:
        """Requests/s admitted, over the capacity window; None when nothing is known."""
        return self.admitted / self.admitted_s if self.admitted_s > 0.0 else None


def observe(
    flow: InstanceFlow | None, previous: Sample | None, sample: Sample, policy: SpillPolicy
) -> InstanceFlow:
    """Add the interval between two samples of one instance.

    Args:
        flow: What `observe` returned for `previous`; None at the first sample.
        previous: The sample before, None at the first one.
        sample: The new sample. One that is not newer than `previous` adds nothing.
        policy: Holds the two time constants.

    Returns:
        The flow including `sample`.
    """
    if flow is None or previous is None:
        return InstanceFlow(at=sample.observed_at)
    interval_s = sample.observed_at - flow.at
    if interval_s <= 0.0:
        return flow
    before, after = previous.engine, sample.engine
    restarted = after.restarts > before.restarts or (
        after.finished_total is not None
        and before.finished_total is not None
        and after.finished_total < before.finished_total
    )
    completed = _growth(before.finished_total, after.finished_total, restarted=restarted)
    inside_before = 0.0 if restarted else _sum(before.running, before.waiting)
    inside_after = _sum(after.running, after.waiting)
    admitted: float | None = None
    if after.state in _ADMITS_NOTHING:
        admitted = 0.0
    elif completed is not None and inside_before is not None and inside_after is not None:
        # Requests that clients gave up leave without being counted and read as negative admissions.
        admitted = completed + inside_after - inside_before
    busy_before = 0.0 if restarted else before.running
    tokens = _sum(
        _growth(before.prompt_tokens_total, after.prompt_tokens_total, restarted=restarted),
        _growth(before.generation_tokens_total, after.generation_tokens_total, restarted=restarted),
    )

    keep_fast = exp(-interval_s / policy.demand_smoothing_s)
    keep = exp(-interval_s / policy.capacity_window_s)
    fast_admitted, fast_s = flow.fast_admitted, flow.fast_s
    slow_admitted, admitted_s = flow.admitted, flow.admitted_s
    if admitted is not None:
        fast_admitted = max(0.0, fast_admitted * keep_fast + admitted)
        fast_s = fast_s * keep_fast + interval_s
        slow_admitted = max(0.0, slow_admitted * keep + admitted)
        admitted_s = admitted_s * keep + interval_s
    total_completed, busy_slot_s = flow.completed, flow.busy_slot_s
    if completed is not None and busy_before is not None and after.running is not None:
        total_completed = total_completed * keep + completed
        busy_slot_s = busy_slot_s * keep + interval_s * (busy_before + after.running) / 2.0
    total_tokens, token_requests = flow.tokens, flow.token_requests
    if tokens is not None and completed is not None:
        total_tokens = total_tokens * keep + tokens
        token_requests = token_requests * keep + completed
    return InstanceFlow(
        at=sample.observed_at,
        fast_admitted=fast_admitted,
        fast_s=fast_s,
        admitted=slow_admitted,
        admitted_s=admitted_s,
        completed=total_completed,
        busy_slot_s=busy_slot_s,
        tokens=total_tokens,
        token_requests=token_requests,
    )


def _growth(before: float | None, after: float | None, *, restarted: bool) -> float | None:
    """How much a counter grew; after a restart all of it is new."""
    if after is None:
        return None
    if restarted:
        return after
    if before is None:
        return None
    return max(0.0, after - before)


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
