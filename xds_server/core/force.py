"""An operator's order that one tier gets all requests of its model, for a limited time.

The spill goes on deciding meanwhile, so that its own shares are right when the order ends. It ends by itself:
when its time is over, when the tier can take no request, or when the tier is taken out of the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from xds_server.core import events as happened
from xds_server.core import publish
from xds_server.core.inputs import Force
from xds_server.core.model import Model, ModelName, TierName
from xds_server.core.plan import FORCED, Event, Reason
from xds_server.core.spill import TierShare
from xds_server.core.state import Forced, ModelState, TierStep


class Ruling(NamedTuple):
    """What an order comes to at one moment."""

    forced: Forced | None
    """The order, while it is in force."""
    position: int | None
    """Of the tier that gets everything."""
    event: Event | None
    """That the order ended now."""


NO_ORDER = Ruling(None, None, None)


def take(model: ModelState, order: Force, now: float) -> tuple[ModelState, Event | None]:
    """Take an order in, or take it back.

    Args:
        model: The model that it is about.
        order: A tier that the model does not have changes nothing.
        now: Monotonic seconds.

    Returns:
        The model, to be decided upon at once, and what happened.
    """
    before = model.forced
    if order.tier is None:
        if before is None:
            return model, None
        text = (
            f"{order.who} takes it back: {order.why}."
            if order.why
            else f"{order.who} takes it back."
        )
        event = _ended(model.model.name, before, Reason(rule="unforced", text=text))
        return replace(model, forced=None, deadline=now), event
    if all(tier.name != order.tier for tier in model.model.tiers):
        return model, None
    forced = Forced(
        tier=order.tier,
        until=order.until,
        until_unix_s=order.until_unix_s,
        who=order.who,
        why=order.why,
    )
    event = happened.forced(
        model.model.name,
        forced.tier,
        name="tier_forced",
        reason=reason(forced),
        before="" if before is None else before.tier,
    )
    return replace(model, forced=forced, deadline=now), event


def rule(forced: Forced | None, model: Model, steps: Sequence[TierStep], now: float) -> Ruling:
    """Say whether an order still holds.

    Args:
        forced: The order; None when there is none.
        model: The model as configured.
        steps: What its tiers' steps found.
        now: Monotonic seconds.

    Returns:
        The order and its tier's position, or the event of its end.
    """
    if forced is None:
        return NO_ORDER
    for position, step in enumerate(steps):
        if step.state.tier.name != forced.tier:
            continue
        if now >= forced.until:
            end = Reason(rule="force_over", text="Its time is over.")
        elif not publish.can_serve(step):
            end = Reason(rule="no_capacity", text="No instance of it may take requests.")
        else:
            return Ruling(forced, position, None)
        break
    else:
        end = Reason(rule="removed", text="The model no longer has this tier.")
    return Ruling(None, None, _ended(model.name, forced, end))


def shares(given: tuple[TierShare, ...], ruling: Ruling) -> tuple[TierShare, ...]:
    """Return the shares under an order; without one they are what the spill decided."""
    if ruling.forced is None or ruling.position is None:
        return given
    why = reason(ruling.forced)
    return tuple(
        TierShare(
            share=float(position == ruling.position),
            spill=float(position < ruling.position),
            demand=share.demand,
            capacity=share.capacity,
            reason=why,
        )
        for position, share in enumerate(given)
    )


def reason(forced: Forced) -> Reason:
    """Return why every tier of the model is given what it is given."""
    until = _moment(forced.until_unix_s)
    return Reason(
        rule=FORCED,
        text=f"{forced.who} gives all requests to {forced.tier} until {until}: {forced.why}.",
        inputs={"tier": forced.tier, "who": forced.who, "why": forced.why, "until": until},
    )


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ended(model: ModelName, forced: Forced, why: Reason) -> Event:
    return happened.forced(
        model, TierName(forced.tier), name="force_ended", reason=why, before=forced.tier
    )
