"""What flows through one instance: requests admitted, requests completed, slots kept busy.

Each new sample adds one interval to exponentially weighted sums. A rate is the ratio of two of them,
so it is right from the first interval on and needs no fixed window:

* admitted requests = growth of `finished_total` + change of (running + waiting): exact at any
  sampling interval, because a request is either still inside or has been counted;
* completions per busy slot-second = 1 / mean service time, whatever the utilization was. While load
  grows, slots are busy with requests that have not completed yet; a running request therefore counts
  as a part of a completion, else the capacity would read too small after every step up.

An interval about which the engine said nothing adds nothing: missing is neither zero nor bad. An
engine that says it is not up admits nothing, which is a fact, and its rate decays just as fast as
the rates of the instances that took over its requests rise.
"""

from __future__ import annotations

from math import exp

from xds_server.core.policy import SpillPolicy
from xds_server.core.record import record
from xds_server.core.sample import EngineFacts, EngineState, Sample

_UP = EngineState.UP
_ADMITS_NOTHING = frozenset({EngineState.DOWN, EngineState.LOADING, EngineState.SLEEPING})
_EMPTY = EngineFacts(
    running=0.0,
    waiting=0.0,
    finished_total=0.0,
    prompt_tokens_total=0.0,
    generation_tokens_total=0.0,
)
"""An engine that has just started."""


@record
class InstanceFlow:
    """Exponentially weighted sums over the samples of one instance.

    `admitted` forgets with `SpillPolicy.demand_smoothing_s`; the others with `capacity_window_s`, but
    never down to less than `capacity_requests` completions: what was learned survives an idle night.
    """

    at: float
    """`observed_at` of the last sample that was added, monotonic seconds."""
    admitted: float = 0.0
    """Requests."""
    admitted_s: float = 0.0
    """Seconds that `admitted` covers."""
    completed: float = 0.0
    """Requests, with the parts of those that run now."""
    busy_slot_s: float = 0.0
    """Slot-seconds of computing that `completed` took."""
    tokens: float = 0.0
    """Prompt and generated tokens."""
    token_requests: float = 0.0
    """Completed requests in the intervals of `tokens`, with the parts of those that run now."""

    @property
    def rate(self) -> float | None:
        """Requests/s admitted over the last few seconds; None when nothing is known."""
        return self.admitted / self.admitted_s if self.admitted_s > 0.0 else None


def observe(
    flow: InstanceFlow | None, previous: Sample | None, sample: Sample, policy: SpillPolicy
) -> InstanceFlow:
    """Add the interval between two samples of one instance.

    Args:
        flow: What `observe` returned for `previous`; None at the first sample.
        previous: The sample before, None at the first one.
        sample: The new sample. One that is not newer than `previous` adds nothing.
        policy: Holds the time constants.

    Returns:
        The flow including `sample`.
    """
    if flow is None or previous is None:
        return InstanceFlow(at=sample.observed_at)
    interval_s = sample.observed_at - flow.at
    if interval_s <= 0.0:
        return flow
    if previous.agent != sample.agent:
        # Counters of two readers have nothing to do with each other: this interval says nothing.
        return InstanceFlow(
            sample.observed_at,
            flow.admitted,
            flow.admitted_s,
            flow.completed,
            flow.busy_slot_s,
            flow.tokens,
            flow.token_requests,
        )
    # Written out instead of called: this runs for every sample of every instance.
    before, after = previous.engine, sample.engine
    total, was = after.finished_total, before.finished_total
    if after.restarts > before.restarts or (total is not None and was is not None and total < was):
        # The engine started anew: counters began again at zero and nothing survived inside.
        before, was = _EMPTY, 0.0
    running, waiting, waited = after.running, after.waiting, before.waiting
    ran = before.running
    admitted, admitted_s = flow.admitted, flow.admitted_s
    done, busy_slot_s = flow.completed, flow.busy_slot_s
    tokens, token_requests = flow.tokens, flow.token_requests
    # Hashing a member of an enum is a Python call: nearly every engine is up.
    idles = after.state is not _UP and after.state in _ADMITS_NOTHING
    if idles:
        keep = exp(-interval_s / policy.demand_smoothing_s)
        admitted *= keep
        admitted_s = admitted_s * keep + interval_s
    if total is not None and was is not None and running is not None and ran is not None:
        completed, grown = total - was, running - ran
        if waiting is not None and waited is not None and not idles:
            # Requests that clients gave up leave uncounted and read as negative admissions.
            keep = exp(-interval_s / policy.demand_smoothing_s)
            admitted = admitted * keep + completed + grown + waiting - waited
            admitted = max(admitted, 0.0)
            admitted_s = admitted_s * keep + interval_s
        # Two readings far apart say little about the slots that were busy between them.
        if interval_s <= policy.capacity_window_s:
            parts = completed + policy.in_progress_credit * grown
            keep = exp(-interval_s / policy.capacity_window_s)
            # All of what rests on few requests is kept.
            least = policy.capacity_requests
            if done > least:
                kept = keep if keep * done > least else least / done
                busy_slot_s *= kept
                done *= kept
            done += parts
            done = max(done, 0.0)
            busy_slot_s += interval_s * (running - grown / 2.0)
            prompt, prompted = after.prompt_tokens_total, before.prompt_tokens_total
            made, had_made = after.generation_tokens_total, before.generation_tokens_total
            if (
                prompt is not None
                and prompted is not None
                and made is not None
                and had_made is not None
            ):
                if token_requests > least:
                    kept = keep if keep * token_requests > least else least / token_requests
                    tokens *= kept
                    token_requests *= kept
                tokens += max(0.0, prompt - prompted) + max(0.0, made - had_made)
                token_requests = max(0.0, token_requests + parts)
    # By position: ten thousand of these are made in 50 ms (see `record`).
    return InstanceFlow(
        sample.observed_at, admitted, admitted_s, done, busy_slot_s, tokens, token_requests
    )
