"""The sentences: why an instance has the weight it has.

On the hot path the sentence is a constant and the numbers are in `Reason.inputs`; nothing is formatted
for ten thousand instances that nobody asks about.
"""

from __future__ import annotations

from xds_server.core.evidence import IN_ROW, RATE
from xds_server.core.plan import FaultState, Freshness, LoadBasis, Reason
from xds_server.core.sentences import (
    ABOVE_MEAN,
    BALANCED,
    BELOW_MEAN,
    BLIND,
    EASING,
    FROZEN,
    HOLD,
    LOAD_UNKNOWN,
)
from xds_server.core.state import InstanceState
from xds_server.core.track import Track

_NOW = {
    "engine_down": "its engine does not answer",
    "engine_hung": "its engine hangs",
    "token_late": "its engine has nothing to do and yet gives no token",
    "token_failed": "its engine fails to give a token",
    "engine_loading": "its engine is loading the model",
    "engine_sleeping": "its engine is asleep",
    "engine_restarted": "its engine restarted once more",
    "out_of_memory": "its engine ran out of memory",
    "gpu_lost": "it lost a GPU",
    "gpu_reset_required": "its GPU needs a reset",
    "agent_drain": "its agent drains it",
    "operator_drain": "an operator drains it",
    IN_ROW: "proxies saw its requests fail",
    RATE: "proxies saw too many of its requests fail",
}
_AFTER = {
    "joined": "it joined the running fleet",
    "engine_down": "its engine was down",
    "engine_hung": "its engine hung",
    "token_late": "its engine gave no token though it had nothing to do",
    "token_failed": "its engine failed to give a token",
    "engine_loaded": "its engine loaded the model",
    "engine_sleeping": "its engine slept",
    "engine_restarted": "its engine restarted",
    "out_of_memory": "its engine ran out of memory",
    "gpu_lost": "it lost a GPU",
    "gpu_reset_required": "its GPU needed a reset",
    IN_ROW: "proxies saw its requests fail",
    RATE: "proxies saw too many of its requests fail",
    "undrained": "its drain was taken back",
    "silent_trial": "it was down and has been silent since: a trial",
    "recovered": "it stayed healthy through every stage",
    "present_at_start": "it was there at the start",
}

_HEALTHY = FaultState.HEALTHY
_STALE = Freshness.HOLD
_LOST = Freshness.BLIND
_THROTTLE = "gpu_throttled", "The hardware throttles its GPU: it gets a part of its capacity."
_VRAM = "Its GPU memory is short: it gets a part of its capacity."


def track_sentence(track: Track, ceiling: float) -> str:
    """Say in one sentence where an instance is and why.

    Args:
        track: Not healthy, or just become so.
        ceiling: The share of its capacity that it gets.

    Returns:
        A sentence, with the agent's or operator's own words where there are any.
    """
    detail = f" ({track.detail})" if track.detail else ""
    if track.seen:
        detail += f", {track.seen}"
    now = _NOW.get(track.cause, track.cause.replace("_", " ")) + detail
    after = _AFTER.get(track.cause, track.cause.replace("_", " ")) + detail
    if track.state is FaultState.HEALTHY:
        return f"All of its capacity: {after}."
    if track.is_ramping:
        return f"{ceiling:.0%} of its capacity for now: {after}."
    if track.state is FaultState.DRAINING:
        return f"No new requests, running ones may finish: {now}."
    if track.state is FaultState.QUARANTINED:
        return f"It gets nothing for a while, because it failed too often; at last {after}."
    return f"It gets nothing: {now}."


def for_track(track: Track, ceiling: float) -> Reason:
    """Return the reason of a ceiling."""
    inputs: dict[str, float | str] = {"ceiling": ceiling}
    if track.detail:
        inputs["detail"] = track.detail
    if track.seen:
        inputs["proxies"] = track.seen
    if track.is_ramping:
        inputs["stage"] = float(track.stage)
        inputs["hold_s"] = track.hold_s
    if track.relapses:
        inputs["relapses"] = float(track.relapses)
    return Reason(rule=track.cause, text=track_sentence(track, ceiling), inputs=inputs)


def for_instance(  # noqa: PLR0917  # by position: once per instance and publication
    state: InstanceState,
    slots: float,
    correction: float,
    mean: float | None,
    frozen: bool,
    easing: bool,
) -> Reason | LoadBasis:
    """Return why an instance has its weight.

    Args:
        state: The instance.
        slots: Its capacity K.
        correction: The factor on its capacity weight.
        mean: The tier's mean pressure; None when unknown.
        frozen: Whether its tier is frozen.
        easing: Whether its correction still moves toward its target.

    Returns:
        The rule that decided, a sentence and the numbers.
    """
    track = state.track
    if track.state is not _HEALTHY:
        return for_track(track, state.ceiling)
    load = state.pressure
    if state.ceiling != 1.0:
        rule, text = ("vram_pressure", _VRAM) if state.vram.latch.on else _THROTTLE
        inputs: dict[str, float | str] = {"slots": slots, "correction": correction}
        if load is not None:
            inputs["pressure"] = load
        if mean is not None:
            inputs["mean"] = mean
        return Reason(rule=rule, text=text, inputs=inputs | {"ceiling": state.ceiling})
    if frozen:
        rule = FROZEN
    elif state.freshness is _STALE:
        rule = HOLD
    elif easing:
        rule = EASING
    elif state.freshness is _LOST:
        rule = BLIND
    elif load is None or mean is None:
        rule = LOAD_UNKNOWN
    elif correction < 1.0:
        rule = ABOVE_MEAN
    elif correction > 1.0:
        rule = BELOW_MEAN
    else:
        rule = BALANCED
    return rule, slots, correction, mean
