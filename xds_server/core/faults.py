"""From faults and drains to a ceiling: the state machine of one instance.

    HEALTHY -- fault --> DOWN -- healthy evidence --> RECOVERING, stage by stage --> HEALTHY
    RECOVERING -- fault --> DOWN, and the next ramp holds twice as long
    HEALTHY -- restarted or loading --> WARMING: 0 while loading, then the same stages --> HEALTHY
    HEALTHY, ramping -- drain --> DRAINING -- taken back --> RECOVERING
    any -- too many faults in the window --> QUARANTINED -- time --> DOWN or RECOVERING

A ceiling is the share of its capacity that an instance may get. It is 0 for faults and drains only;
load never sets it. Each stage is held with healthy and *fresh* evidence: the timer stands still while
nothing is known. Decisions that the rules alone do not make obvious:

* Instances of the first configuration start healthy, as do those that join within
  `RecoveryPolicy.startup_s` of the start: a restarting control plane must not throttle a healthy
  fleet. Whoever joins later ramps. One that never sends telemetry ramps on time alone.
* Silence never takes an instance out, nor does it bring one back: an agent dies with its host, so an
  instance known to be down stays down. After `silent_down_s` without a word it gets a trial at the
  first stage (Envoy's outlier detection guards it) and advances only on evidence. A drain has no such
  expiry: it lasts until it is taken back.
* An instance whose ramp was interrupted must look healthy for one hold before the next ramp begins,
  which bounds how often it can flap.
* A fault while draining does not count toward quarantine: that engine is expected to end.
* A sleeping engine gets nothing, but it is not a fault that counts.
* What proxies see of requests is evidence too: `witness.py` says who is believed when.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from math import inf

from xds_server.core.finding import Condition, Finding, judge
from xds_server.core.model import InstanceId
from xds_server.core.plan import FaultState
from xds_server.core.policy import RecoveryPolicy
from xds_server.core.sample import Sample
from xds_server.core.track import LOADING_STAGE, Context, Track

WAS_FIRST = "proxies saw its requests fail before that"
SERVED_S = 10.0
"""For how long the proxies' word that requests succeed is evidence."""


def present(now: float) -> Track:
    """Return the track of an instance that was there when the control plane started."""
    return Track(state=FaultState.HEALTHY, cause="present_at_start", detail="", since=now)


def joined(context: Context) -> Track:
    """Return the track of an instance that joined a running fleet: it ramps."""
    return _ramp(present(context.now), FaultState.WARMING, "joined", "", context)


def ceiling(track: Track, policy: RecoveryPolicy) -> float:
    """Return the share of its capacity that the instance may get, 0-1."""
    if track.state is FaultState.HEALTHY:
        return 1.0
    if track.is_ramping:
        return policy.stages[min(track.stage, len(policy.stages) - 1)]
    return 0.0


def observe(track: Track, sample: Sample, context: Context) -> Track:
    """Take a new sample.

    Args:
        track: The instance so far.
        sample: Newer than the last one.
        context: Instance, policy and time.

    Returns:
        The same object when the sample says nothing new.
    """
    finding = judge(sample)
    engine = sample.engine
    first = track.restarts is None
    # A counter that fell belongs to a new agent and says nothing about the engine.
    restarted = 0 if track.restarts is None else max(0, engine.restarts - track.restarts)
    if track.restarts != engine.restarts or track.agent_drains != sample.draining:
        track = replace(track, restarts=engine.restarts, agent_drains=sample.draining)
    if finding.condition in (Condition.FAULT, Condition.SLEEPING):
        counts = finding.condition is Condition.FAULT and not first
        track = fail(track, finding, context, count=1 if counts else 0)
    elif finding.condition is Condition.LOADING:
        track = _loading(track, finding, context, count=0 if first else 1)
    elif restarted and (is_serving(track) or track.is_out_by_proxies):
        track = _restarted(track, finding, context, count=restarted)
    return settle(track, finding, context, fresh=True)


def drain(track: Track, context: Context, *, who: str | None) -> Track:
    """Let an operator drain the instance (`who`), or take the drain back (None)."""
    if track.operator == who:
        return track
    return _drained(replace(track, operator=who), context)


def settle(track: Track, finding: Finding | None, context: Context, *, fresh: bool) -> Track:
    """Let time pass: stages advance on evidence, quarantines end, timers stop when nothing is known.

    Args:
        track: The instance so far.
        finding: What its last sample says; None when it never sent one.
        context: Instance, policy and time.
        fresh: Whether that sample is fresh.

    Returns:
        The same object when nothing is due.
    """
    good = fresh and finding is not None and finding.condition is Condition.GOOD
    knows = fresh and finding is not None and finding.condition is not Condition.UNKNOWN
    if track.served_at is not None and context.now >= track.served_at + SERVED_S:
        track = replace(track, served_at=None)
    if track.state is FaultState.QUARANTINED:
        if track.due_at is not None and context.now < track.due_at:
            return track
        if not good:
            track = _enter(track, FaultState.DOWN, track.cause, track.detail, context)
            # The quarantine was the proof: good evidence starts the ramp at once.
            return replace(track, left_s=0.0)
        return _drained(
            _ramp(track, FaultState.RECOVERING, track.cause, track.detail, context), context
        )
    if track.is_out_by_proxies and not knows:
        # Nobody but the proxies can tell, and they cannot without requests: a trial.
        if context.now >= _blind_trial_at(track, context.policy):
            return _trial(track, context)
        return track if track.due_at is None else replace(track, due_at=None)
    if track.state is FaultState.DOWN:
        return _settle_down(track, context, good=good, silent=not fresh)
    if track.is_loading:
        if not good:
            return track
        track = _ramp(track, FaultState.WARMING, "engine_loaded", "", context)
    elif track.is_ramping:
        # A newcomer without any telemetry has nothing but time to prove itself.
        proof = good or (finding is None and track.cause == "joined")
        proof = proof or (not knows and track.served_at is not None)
        track = _timer(track, context, proof=proof)
        if track.due_at is not None and context.now >= track.due_at:
            track = _advance(track, context)
    return _drained(track, context)


def deadline(track: Track, observed_at: float | None, policy: RecoveryPolicy) -> float:
    """Return when `settle` must run though no sample came; infinity when never.

    Args:
        track: The instance.
        observed_at: Time of its last sample, None when there is none.
        policy: Holds `silent_down_s`.

    Returns:
        Monotonic seconds.
    """
    if track.due_at is not None:
        if track.served_at is None:
            return track.due_at
        return min(track.due_at, track.served_at + SERVED_S)
    if track.state is FaultState.DOWN or track.is_loading:
        return _trial_at(track, observed_at, policy)
    return inf


def expire(track: Track, observed_at: float | None, context: Context) -> Track:
    """Give a silent instance that was last known to be down a trial once `silent_down_s` is over."""
    if track.state is not FaultState.DOWN and not track.is_loading:
        return track
    if track.due_at is not None or context.now < _trial_at(track, observed_at, context.policy):
        return track
    return _trial(track, context)


def _trial(track: Track, context: Context) -> Track:
    track = _ramp(track, FaultState.RECOVERING, "silent_trial", track.detail, context)
    return _drained(replace(track, due_at=None, left_s=track.hold_s), context)


def _blind_trial_at(track: Track, policy: RecoveryPolicy) -> float:
    """Return when an instance that only proxies took out gets a trial though no agent vouches for it."""
    return track.since + _hold_s(track, policy)


def _trial_at(track: Track, observed_at: float | None, policy: RecoveryPolicy) -> float:
    if track.is_out_by_proxies:
        return _blind_trial_at(track, policy)
    heard = track.since if observed_at is None else max(track.since, observed_at)
    return heard + policy.silent_down_s


def _settle_down(track: Track, context: Context, *, good: bool, silent: bool) -> Track:
    if not good:
        if track.due_at is None:
            return track
        if silent:
            return _timer(track, context, proof=False)
        return replace(track, due_at=None, left_s=None)
    if track.due_at is None:
        proof_s = track.left_s
        if proof_s is None:
            is_doubted = track.relapses or track.is_out_by_proxies
            proof_s = context.policy.hold_s if is_doubted else 0.0
        track = replace(track, due_at=context.now + proof_s, left_s=None)
    assert track.due_at is not None
    if context.now < track.due_at:
        return track
    return _drained(
        _ramp(track, FaultState.RECOVERING, track.cause, track.detail, context), context
    )


def _timer(track: Track, context: Context, *, proof: bool) -> Track:
    """Run the timer while there is proof, stop it while there is none."""
    if proof:
        if track.due_at is not None:
            return track
        left_s = track.hold_s if track.left_s is None else track.left_s
        return replace(track, due_at=context.now + left_s, left_s=None)
    if track.due_at is None:
        return track
    return replace(track, due_at=None, left_s=max(0.0, track.due_at - context.now))


def _advance(track: Track, context: Context) -> Track:
    last = len(context.policy.stages) - 1
    if track.stage >= last:
        track = _enter(track, FaultState.HEALTHY, "recovered", "", context)
        return replace(track, relapses=0)
    return replace(
        track, stage=track.stage + 1, since=context.now, due_at=context.now + track.hold_s
    )


def fail(track: Track, finding: Finding, context: Context, *, count: int) -> Track:
    """Take the instance out, or go on with another cause if it is out.

    Args:
        track: The instance so far.
        finding: What is wrong with it.
        context: Instance, policy and time.
        count: How many faults this is toward quarantine, if the instance was serving.
    """
    if track.is_out_by_proxies:
        # The agent confirms it: now it counts, as it would have if the agent had been first.
        track = _count(track, context, count=count)
        track = _enter(track, _out(track, context), finding.cause, finding.detail, context)
        return seeing(track, WAS_FIRST)
    if track.state in (FaultState.DOWN, FaultState.QUARANTINED):
        if (track.cause, track.detail) == (finding.cause, finding.detail):
            return track
        return replace(track, cause=finding.cause, detail=finding.detail)
    track = _count(track, context, count=count if is_serving(track) else 0)
    return _enter(track, _out(track, context), finding.cause, finding.detail, context)


def _loading(track: Track, finding: Finding, context: Context, *, count: int) -> Track:
    is_out = track.state in (FaultState.DOWN, FaultState.QUARANTINED) or track.is_loading
    if is_out and not track.is_out_by_proxies:
        return track
    counts = is_serving(track) or track.is_out_by_proxies
    track = _count(track, context, count=count if counts else 0)
    out = _out(track, context)
    if out is FaultState.DOWN:
        track = _enter(track, FaultState.WARMING, finding.cause, finding.detail, context)
        return replace(track, stage=LOADING_STAGE)
    return _enter(track, out, finding.cause, finding.detail, context)


def _restarted(track: Track, finding: Finding, context: Context, *, count: int) -> Track:
    track = _count(track, context, count=count)
    if _out(track, context) is FaultState.QUARANTINED:
        return _enter(track, FaultState.QUARANTINED, "engine_restarted", finding.detail, context)
    if track.relapses:
        return _enter(track, FaultState.DOWN, "engine_restarted", finding.detail, context)
    return _ramp(track, FaultState.WARMING, "engine_restarted", finding.detail, context)


def is_serving(track: Track) -> bool:
    """Whether it may get requests."""
    return track.state is FaultState.HEALTHY or track.is_ramping


def seeing(track: Track, clause: str) -> Track:
    """Return the track with what proxies see of it, beside what its agent says."""
    return track if track.seen == clause else replace(track, seen=clause)


def _count(track: Track, context: Context, *, count: int) -> Track:
    """Remember faults, and that a ramp was interrupted."""
    policy, now = context.policy, context.now
    recent = tuple(at for at in track.faults if at > now - policy.quarantine_window_s)
    faults = (recent + (now,) * count)[-policy.quarantine_faults :]
    return replace(track, faults=faults, relapses=track.relapses + (1 if track.is_ramping else 0))


def _out(track: Track, context: Context) -> FaultState:
    looping = len(track.faults) >= context.policy.quarantine_faults and context.now in track.faults
    return FaultState.QUARANTINED if looping else FaultState.DOWN


def _drained(track: Track, context: Context) -> Track:
    is_draining = track.state is FaultState.DRAINING
    if not track.is_drained:
        if is_draining:
            return _ramp(track, FaultState.RECOVERING, "undrained", "", context)
        return track
    operator = track.operator
    cause, detail = ("agent_drain", "") if operator is None else ("operator_drain", operator)
    if is_serving(track):
        return _enter(track, FaultState.DRAINING, cause, detail, context)
    if is_draining and (cause, detail) != (track.cause, track.detail):
        # Who wants it empty may change while it is; what is said of it must not stay behind.
        return replace(track, cause=cause, detail=detail)
    return track


def _enter(track: Track, state: FaultState, cause: str, detail: str, context: Context) -> Track:
    ends = context.now + context.policy.quarantine_s if state is FaultState.QUARANTINED else None
    return replace(
        track,
        state=state,
        cause=cause,
        detail=detail,
        since=context.now,
        stage=0,
        due_at=ends,
        left_s=None,
        hold_s=0.0,
        served_at=None,
        seen="",
    )


def _ramp(track: Track, state: FaultState, cause: str, detail: str, context: Context) -> Track:
    policy = context.policy
    hold_s = _hold_s(track, policy)
    hold_s *= 1.0 + policy.jitter_ratio * _fraction(context.instance, track.episode)
    return replace(
        track,
        state=state,
        cause=cause,
        detail=detail,
        since=context.now,
        stage=0,
        due_at=context.now + hold_s,
        left_s=None,
        hold_s=hold_s,
        episode=track.episode + 1,
        served_at=None,
        seen="",
    )


def _hold_s(track: Track, policy: RecoveryPolicy) -> float:
    """Return how long a stage is held after this many relapses, before the jitter."""
    return min(policy.hold_max_s, policy.hold_s * 2.0 ** min(track.relapses, 32))


def _fraction(instance: InstanceId, episode: int) -> float:
    """Return the same number in [0, 1) for the same instance and episode, on every machine."""
    digest = sha256(f"{instance}/{episode}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32
