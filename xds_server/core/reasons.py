"""The sentences: why an instance has the weight it has.

On the hot path the sentence is a constant and the numbers are in `Reason.inputs`; nothing is formatted
for ten thousand instances that nobody asks about.
"""

from __future__ import annotations

from xds_server.core.faults import Track
from xds_server.core.plan import FaultState, Freshness, Reason
from xds_server.core.state import InstanceState

_NOW = {
    "engine_down": "its engine does not answer",
    "engine_hung": "its engine has running requests but makes no tokens",
    "engine_loading": "its engine is loading the model",
    "engine_sleeping": "its engine is asleep",
    "engine_restarted": "its engine restarted once more",
    "out_of_memory": "its engine ran out of memory",
    "gpu_lost": "it lost a GPU",
    "gpu_reset_required": "its GPU needs a reset",
    "agent_drain": "its agent drains it",
    "operator_drain": "an operator drains it",
}
_AFTER = {
    "joined": "it joined the running fleet",
    "engine_down": "its engine was down",
    "engine_hung": "its engine hung",
    "engine_loaded": "its engine loaded the model",
    "engine_sleeping": "its engine slept",
    "engine_restarted": "its engine restarted",
    "out_of_memory": "its engine ran out of memory",
    "gpu_lost": "it lost a GPU",
    "gpu_reset_required": "its GPU needed a reset",
    "undrained": "its drain was taken back",
    "silent_trial": "it was down and has been silent since: a trial",
    "recovered": "it stayed healthy through every stage",
    "present_at_start": "it was there at the start",
}

_HEALTHY = FaultState.HEALTHY
_STALE = Freshness.HOLD
_LOST = Freshness.BLIND
BALANCED = "At its tier's mean pressure: the weight of its capacity."
ABOVE_MEAN = "Busier than its tier's mean: less than the weight of its capacity."
BELOW_MEAN = "Less busy than its tier's mean: more than the weight of its capacity."
_LOAD_UNKNOWN = "Its load is unknown: the weight of its capacity."
_HOLD = "Its telemetry is stale: the last correction is kept."
_BLIND = "It sends no telemetry: the weight of its capacity, without a correction."
_FROZEN = "More than half of its tier is blind: the whole tier keeps its corrections."
EASING = "telemetry_easing"
_EASING = "Its telemetry changed: the correction moves slowly to where it belongs."
_THROTTLED = "The hardware throttles its GPU: it gets a part of its capacity."
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
    now = _NOW.get(track.cause, track.cause.replace("_", " ")) + detail
    after = _AFTER.get(track.cause, track.cause.replace("_", " ")) + detail
    if track.state is FaultState.HEALTHY:
        return f"All of its capacity: {after}."
    if track.is_ramping:
        return f"{ceiling:.0%} of its capacity for now: {after}."
    if track.state is FaultState.DRAINING:
        return f"No new requests, running ones may finish: {now}."
    if track.state is FaultState.QUARANTINED:
        return f"Nothing for a while, it failed too often; at last {after}."
    return f"Nothing: {now}."


def for_track(track: Track, ceiling: float) -> Reason:
    """Return the reason of a ceiling."""
    inputs: dict[str, float | str] = {"ceiling": ceiling}
    if track.detail:
        inputs["detail"] = track.detail
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
) -> Reason:
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
    inputs: dict[str, float | str] = {"slots": slots, "correction": correction}
    if load is not None:
        inputs["pressure"] = load
    if mean is not None:
        inputs["mean"] = mean
    if state.ceiling != 1.0:
        inputs["ceiling"] = state.ceiling
        if state.vram.latch.on:
            return Reason(rule="vram_pressure", text=_VRAM, inputs=inputs)
        return Reason(rule="gpu_throttled", text=_THROTTLED, inputs=inputs)
    if frozen:
        return Reason(rule="tier_frozen", text=_FROZEN, inputs=inputs)
    if state.freshness is _STALE:
        return Reason(rule="telemetry_hold", text=_HOLD, inputs=inputs)
    if easing:
        return Reason(rule=EASING, text=_EASING, inputs=inputs)
    if state.freshness is _LOST:
        return Reason(rule="telemetry_blind", text=_BLIND, inputs=inputs)
    if load is None or mean is None:
        return Reason(rule="load_unknown", text=_LOAD_UNKNOWN, inputs=inputs)
    if correction < 1.0:
        return Reason("load_above_mean", ABOVE_MEAN, inputs)
    if correction > 1.0:
        return Reason("load_below_mean", BELOW_MEAN, inputs)
    return Reason("load_balanced", BALANCED, inputs)
