"""What happened, as the clients saw it: from each cause to the first request that obeyed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from demo.outcome import Outcome
from demo.play import FALLBACK, PRIMARY, STATIC, VICTIM
from demo.report import Effect, tier_of
from demo.watch import Farewell

FAILOVER = "failover"
"""`x-degrade-reason` of answers for which Envoy left a tier by itself, unasked."""

SETTLED_S = 3.0
"""A recovery counts when only the 70B has answered for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Moments of the play, in seconds of the system's monotonic clock."""

    acts: Mapping[str, float]
    """When each act began."""
    died_s: float | None = None
    back_s: float | None = None
    """When the victim served again."""
    whole_s: float | None = None
    """When the control plane gave the victim its whole share back."""
    farewell: Farewell | None = None


def effects(outcomes: Sequence[Outcome], marks: Marks, tiers: Mapping[str, str]) -> list[Effect]:
    """Return every cause of the play with the time until the first request that obeyed it."""

    def routed_to(tier: str) -> Callable[[Outcome], bool]:
        return lambda each: tier_of(each, tiers) == tier and each.reason != FAILOVER

    def served_by_victim(each: Outcome) -> bool:
        return each.engine == VICTIM

    overload, full = marks.acts["overload"], marks.acts["both full"]
    fall = marks.acts["recovery"]
    found = [
        Effect(
            cause="more load than the 70B pool can take",
            effect="first request that the control plane sent to the 8B",
            after_s=_first(outcomes, since_s=overload, wanted=routed_to(FALLBACK)),
        )
    ]
    if marks.farewell is not None:
        wasted = marks.farewell.attempts
        if wasted:
            found.append(
                Effect(
                    cause=f"{VICTIM} died",
                    effect=f"Envoy's own last attempt to reach it ({wasted} in vain, none seen by a client)",
                    after_s=marks.farewell.last_attempt_after_s,
                )
            )
        found.append(
            Effect(
                cause=f"{VICTIM} died",
                effect="the control plane has taken it away from both Envoys",
                after_s=marks.farewell.told_after_s,
            )
        )
    found.append(
        Effect(
            cause="more load than both models can take",
            effect="first static answer",
            after_s=_first(outcomes, since_s=full, wanted=routed_to(STATIC)),
        )
    )
    if marks.back_s is not None:
        found.append(
            Effect(
                cause=f"{VICTIM} serves again",
                effect="first request that it answered",
                after_s=_first(outcomes, since_s=marks.back_s, wanted=served_by_victim),
            )
        )
        found.append(
            Effect(
                cause=f"{VICTIM} serves again",
                effect="it has its whole share",
                after_s=None if marks.whole_s is None else marks.whole_s - marks.back_s,
            )
        )
    found.append(
        Effect(
            cause="the load fell",
            effect=f"the 70B answers everything again (for {SETTLED_S:g} s at least)",
            after_s=_settled(outcomes, since_s=fall, tiers=tiers),
        )
    )
    return found


def _first(
    outcomes: Iterable[Outcome], *, since_s: float, wanted: Callable[[Outcome], bool]
) -> float | None:
    starts = [each.started_s for each in outcomes if each.started_s >= since_s and wanted(each)]
    return min(starts) - since_s if starts else None


def _settled(
    outcomes: Iterable[Outcome], *, since_s: float, tiers: Mapping[str, str]
) -> float | None:
    """Return when the first stretch of `SETTLED_S` began in which only the primary tier answered."""
    later = sorted((each for each in outcomes if each.started_s >= since_s), key=_start_of)
    began: float | None = None
    for each in later:
        if tier_of(each, tiers) != PRIMARY:
            began = None
            continue
        if began is None:
            began = each.started_s
        if each.started_s - began >= SETTLED_S:
            return began - since_s
    return None


def _start_of(outcome: Outcome) -> float:
    return outcome.started_s
