"""What an evaluation decided, as events: one log line and one row of the timeline each."""

from __future__ import annotations

from xds_server.core import reasons
from xds_server.core.hysteresis import Latch
from xds_server.core.inputs import Evidence
from xds_server.core.model import ModelName, TierName
from xds_server.core.plan import Event, FaultState, Freshness, Level, Reason
from xds_server.core.state import InstanceState
from xds_server.core.track import Track


def of_instance(
    model: ModelName, tier: TierName, before: InstanceState, after: InstanceState
) -> list[Event]:
    """Return what happened to one instance between two states of it.

    Args:
        model: Its model.
        tier: Its tier.
        before: The instance as it was.
        after: The instance as it is.

    Returns:
        One event per transition: state or stage, throttling, VRAM, telemetry.
    """
    events: list[Event] = []
    instance = after.instance.id

    def add(name: str, reason: Reason, was: str, now: str) -> None:
        events.append(
            Event(
                name=name,
                model=model,
                tier=tier,
                instance=instance,
                reason=reason,
                before=was,
                after=now,
            )
        )

    was, now = before.track, after.track
    if was is not now and (was.state, was.stage) != (now.state, now.stage):
        name = f"instance_{now.state}" if was.state is not now.state else "instance_stage_advanced"
        add(name, reasons.for_track(now, after.ceiling), _where(was), _where(now))
    if before.vram.latch.on is not after.vram.latch.on:
        tripped = after.vram.latch.on
        add(
            "vram_tripped" if tripped else "vram_cleared",
            Reason(
                rule="vram_pressure",
                text=_moved(
                    before.vram.latch,
                    on="GPU memory above what the engine reserved.",
                    off="GPU memory is back to what the engine reserved.",
                    forgotten="GPU memory is not read any more: that it was short counts no longer.",
                ),
                inputs=_memory(after),
            ),
            _position(before.vram.latch.on),
            _position(tripped),
        )
    if before.throttle.on is not after.throttle.on:
        throttled = after.throttle.on
        add(
            "gpu_throttled" if throttled else "gpu_unthrottled",
            Reason(
                rule="gpu_throttled",
                text=_moved(
                    before.throttle,
                    on="The hardware throttles the GPU.",
                    off="The hardware no longer throttles the GPU.",
                    forgotten="The GPU is not read any more: that it was throttled counts no longer.",
                ),
                inputs={"ceiling": after.ceiling},
            ),
            _position(before.throttle.on),
            _position(throttled),
        )
    if before.freshness is not after.freshness:
        name, text = _TELEMETRY[after.freshness]
        add(name, Reason(rule=name, text=text), before.freshness, after.freshness)
    return events


def _moved(before: Latch, *, on: str, off: str, forgotten: str) -> str:
    """Choose what to say of a latch that moved."""
    if not before.on:
        return on
    return off if before.silent_since is None else forgotten


def joined(model: ModelName, tier: TierName, state: InstanceState) -> Event:
    """Return the event of an instance that was added to the fleet."""
    return Event(
        name="instance_joined",
        model=model,
        tier=tier,
        instance=state.instance.id,
        reason=reasons.for_track(state.track, state.ceiling),
        after=_where(state.track),
    )


def left(model: ModelName, tier: TierName, state: InstanceState) -> Event:
    """Return the event of an instance that is no longer part of the fleet."""
    return Event(
        name="instance_left",
        model=model,
        tier=tier,
        instance=state.instance.id,
        reason=Reason(rule="removed", text="It is no longer part of the fleet."),
        before=_where(state.track),
    )


def held_back(model: ModelName, tier: TierName, evidence: Evidence) -> Event:
    """Return the event of evidence that is not acted upon: too much of its tier is out for that."""
    text = (
        f"Proxies see its requests fail ({evidence.detail}), but half of its tier is out for that "
        "already: what fails everywhere is the requests or the network."
    )
    return Event(
        name="evidence_held_back",
        model=model,
        tier=tier,
        instance=evidence.instance,
        reason=Reason(rule=evidence.cause, text=text),
    )


def level_changed(
    model: ModelName, tier: TierName, *, before: Level, after: Level, reason: Reason
) -> Event:
    """Return the event of a tier's new level."""
    return Event(
        name="level_changed",
        model=model,
        tier=tier,
        instance=None,
        reason=reason,
        before=before,
        after=after,
    )


def tier_event(model: ModelName, tier: TierName, *, name: str, reason: Reason) -> Event:
    """Return an event of a whole tier that has no before and after."""
    return Event(name=name, model=model, tier=tier, instance=None, reason=reason)


def forced(model: ModelName, tier: TierName, *, name: str, reason: Reason, before: str) -> Event:
    """Return the event of an order that one tier gets everything: given or ended."""
    after = tier if name == "tier_forced" else ""
    return Event(
        name=name, model=model, tier=tier, instance=None, reason=reason, before=before, after=after
    )


_TELEMETRY = {
    Freshness.FRESH: ("telemetry_returned", "Its agent is heard again."),
    Freshness.HOLD: ("telemetry_stale", "Its telemetry is old: the last weight is kept."),
    Freshness.BLIND: ("telemetry_lost", "Its telemetry is gone: its capacity alone decides."),
}


def _where(track: Track) -> str:
    if track.state in (FaultState.WARMING, FaultState.RECOVERING):
        return f"{track.state}/{track.stage}" if track.stage >= 0 else f"{track.state}/loading"
    return track.state


def _position(on: bool) -> str:
    return "on" if on else "off"


def _memory(state: InstanceState) -> dict[str, float | str]:
    inputs: dict[str, float | str] = {}
    gpu = None if state.sample is None else state.sample.gpu
    if gpu is not None and gpu.vram_ratio is not None:
        inputs["vram_ratio"] = gpu.vram_ratio
    if gpu is not None and gpu.vram_free_bytes is not None:
        inputs["vram_free_bytes"] = float(gpu.vram_free_bytes)
    return inputs
