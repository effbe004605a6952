"""How a model's requests divide over its classes, and which class gets which tier.

The spill says what share of all requests each tier is given. Classes keep these totals and divide them: the
most critical class is given the first tiers, as far as its share of the requests reaches, then the next
class, so what is spilled is taken from the least critical class first. Laid side by side, the shares of the classes
and those of the tiers cut the same unit of requests:

    core ============|elastic ==========|best_effort ===
    primary =====================|fallback ======|static

Here core gets only the primary, elastic both engines' tiers, best_effort what is left.

What was observed of the classes' shares is exponentially weighted counts on top of a belief worth a few requests,
so that it is right from the start and does not jump.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, isfinite

from xds_server.core.model import ClassName, ModelName, RequestClass, WhenCritical
from xds_server.core.plan import (
    FORCED,
    TIER_WEIGHT_TOTAL,
    ClassPlan,
    Event,
    Level,
    ModelPlan,
    Plan,
    Reason,
)
from xds_server.core.record import record
from xds_server.core.weights import allocate

DEMAND_MIN = 0.001
"""No class's share is taken as smaller: it divides, and the first requests of a class need a place too."""
DEMAND_WINDOW_S = 30.0
"""Time constant of the observed counts, as long as demand is smoothed where it is steady."""
PRIOR_REQUESTS = 20.0
"""How many observed requests the configured shares count for: few, so that they are soon overruled."""
KEPT_REQUESTS = 200.0
"""What was learned from fewer requests than this is kept, however long ago it was."""
PUBLISH_CHANGE = 0.01
"""New shares are used when one moved by more than this: as much as a tier's share must move."""
_LEAST = 0.5 / TIER_WEIGHT_TOTAL
"""A part of a class below half a step is none."""


@record
class Observed:
    """Requests of one model by class, exponentially weighted."""

    counts: tuple[float, ...]
    """In the order of the classes."""
    at: float
    """When they were last added to, monotonic seconds."""


@record
class Divided:
    """A plan and what was made of it."""

    ratios: tuple[float, ...]
    """The classes' shares of the requests that were used."""
    given: ModelPlan | None = None
    """Without classes; None when only the shares are known, after a restart."""
    plan: ModelPlan | None = None
    seen: Observed | None = None
    """What was observed then."""


@record
class Division:
    """What is remembered between two plans. Immutable, as everything in the core."""

    classes: tuple[RequestClass, ...]
    observed: Mapping[ModelName, Observed]
    divided: Mapping[ModelName, Divided]
    given: tuple[ModelPlan, ...] = ()
    """The models of the last plan ..."""
    plans: tuple[ModelPlan, ...] = ()
    """... and what was made of them."""


def initial(classes: tuple[RequestClass, ...]) -> Division:
    """Return a division about which nothing was observed."""
    return Division(classes=classes, observed={}, divided={})


def retarget(division: Division, classes: tuple[RequestClass, ...]) -> Division:
    """Go on with other classes; those that stay, in their order, keep what was observed."""
    if classes == division.classes:
        return replace(division, given=(), plans=())
    places = {each.name: index for index, each in enumerate(division.classes)}
    observed = {
        model: Observed(
            counts=tuple(
                seen.counts[places[each.name]] if each.name in places else 0.0 for each in classes
            ),
            at=seen.at,
        )
        for model, seen in division.observed.items()
    }
    return Division(classes=classes, observed=observed, divided={})


def observe(
    division: Division, model: ModelName, counts: Mapping[ClassName, float], now: float
) -> Division:
    """Add requests that proxies saw since the last call.

    Args:
        division: What the last step returned.
        model: Whose requests they are.
        counts: Requests by class; classes that are not known are ignored.
        now: Monotonic seconds.

    Returns:
        The division that knows of them; the same one where there are no classes.

    Raises:
        ValueError: A count is negative or not finite.
    """
    if not division.classes:
        return division
    added = [float(counts.get(each.name, 0.0)) for each in division.classes]
    if any(not 0.0 <= count < float("inf") for count in added):
        raise ValueError(f"{model}: counts {dict(counts)}; expected finite numbers of at least 0")
    before = division.observed.get(model)
    if before is not None:
        keep = exp(-max(0.0, now - before.at) / DEMAND_WINDOW_S)
        total = sum(before.counts)
        if total > 0.0:
            keep = max(keep, min(1.0, KEPT_REQUESTS / total))
        added = [was * keep + new for was, new in zip(before.counts, added, strict=True)]
    seen = Observed(counts=tuple(added), at=now)
    return replace(division, observed={**division.observed, model: seen}, given=())


def believed(classes: Sequence[RequestClass]) -> tuple[float, ...]:
    """Return the classes' shares before anything was observed; they add up to 1."""
    stated = [each.demand_ratio for each in classes]
    rest = max(0.0, 1.0 - sum(ratio for ratio in stated if ratio is not None))
    open_ = sum(1 for ratio in stated if ratio is None)
    return _normal(rest / open_ if ratio is None else ratio for ratio in stated)


def ratios(division: Division, model: ModelName) -> tuple[float, ...]:
    """Return the classes' shares of a model's requests, as far as known; they add up to 1."""
    prior = believed(division.classes)
    seen = division.observed.get(model)
    if seen is None:
        return prior
    return _normal(
        count + PRIOR_REQUESTS * share for count, share in zip(seen.counts, prior, strict=True)
    )


def has_moved(division: Division, model: ModelName) -> bool:
    """Whether a model's shares moved so far that its plan should follow."""
    divided = division.divided.get(model)
    if divided is None:
        return False
    now = ratios(division, model)
    return _distance(now, divided.ratios) > PUBLISH_CHANGE


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _normal(parts: Iterable[float]) -> tuple[float, ...]:
    """Return shares that add up to 1, none below `DEMAND_MIN` (but for the sum)."""
    known = tuple(parts)
    total = sum(known)
    raised = [max(DEMAND_MIN, part / total) if total > 0.0 else 1.0 for part in known]
    whole = sum(raised)
    return tuple(part / whole for part in raised)


def split(shares: Sequence[float], demand: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Divide the tiers' shares over the classes, the least critical class taking the last tiers.

    Args:
        shares: Of the tiers, in chain order; they add up to 1.
        demand: Of the classes, from most to least critical; above zero, they add up to 1.

    Returns:
        Per class the share of its own requests that each tier gets; each adds up to 1, and weighted with
        `demand` they add up to `shares`.
    """
    total = sum(shares)
    tiers = _edges(share / total for share in shares)
    result = []
    for start, end in pairwise(_edges(demand)):
        parts = [
            max(0.0, min(end, upper) - max(start, lower)) / (end - start)
            for lower, upper in pairwise(tiers)
        ]
        whole = sum(parts)
        result.append(tuple(part / whole for part in parts))
    return tuple(result)


def _edges(parts: Iterable[float]) -> list[float]:
    edges = [0.0]
    for part in parts:
        edges.append(edges[-1] + part)
    edges[-1] = 1.0
    return edges


def divide(division: Division, plan: Plan) -> tuple[Division, Plan]:
    """Give every model of a plan the weights of its classes.

    Args:
        division: What the last step returned.
        plan: As the evaluation made it, without classes.

    Returns:
        What to remember, and the plan. A model whose plan and shares did not move keeps its object, and so
        does the tuple of models; without classes it is the plan that was given.
    """
    if not division.classes:
        return division, plan
    if plan.models is division.given:
        return division, replace(plan, models=division.plans)
    divided = {
        model.name: _divide_model(division, model, division.divided.get(model.name))
        for model in plan.models
    }
    plans = tuple([made.plan for made in divided.values() if made.plan is not None])
    if len(plans) == len(division.plans) and all(
        new is was for new, was in zip(plans, division.plans, strict=True)
    ):
        plans = division.plans
    after = replace(division, divided=divided, given=plan.models, plans=plans)
    events = plan.events
    if plans is not division.plans:
        before = {model.name: model for model in division.plans}
        events += tuple(each for model in plans for each in _events(before.get(model.name), model))
    return after, replace(plan, models=plans, events=events)


def _events(before: ModelPlan | None, model: ModelPlan) -> Iterator[Event]:
    """Yield what happened to the classes of a model since its last plan."""
    was = {each.name: each.is_shed for each in before.classes} if before else {}
    for each in model.classes:
        if each.is_shed == was.get(each.name, False):
            continue
        yield Event(
            name="class_shed" if each.is_shed else "class_served",
            model=model.name,
            tier=model.tiers[0].name,
            instance=None,
            reason=each.reason,
            after=each.name,
        )


def _divide_model(division: Division, model: ModelPlan, before: Divided | None) -> Divided:
    seen = division.observed.get(model.name)
    is_same = before is not None and model is before.given
    if before is not None and is_same and seen is before.seen:
        return before
    used = ratios(division, model.name)
    if before is not None and _distance(used, before.ratios) <= PUBLISH_CHANGE:
        if is_same:
            return replace(before, seen=seen)
        used = before.ratios
    plan = replace(model, classes=_plans(division.classes, model, used))
    if before is not None and plan == before.plan:
        plan = before.plan
    return Divided(ratios=used, given=model, plan=plan, seen=seen)


def _plans(
    classes: Sequence[RequestClass], model: ModelPlan, demand: Sequence[float]
) -> tuple[ClassPlan, ...]:
    shares = [tier.share for tier in model.tiers]
    first = model.tiers[0]
    # What an operator sends elsewhere does not press the first tier.
    is_critical = first.level is Level.CRITICAL and first.reason.rule != FORCED
    does = [each.when_critical if is_critical else WhenCritical.SERVE for each in classes]
    # The tiers' shares are of what reaches engines: what is shed has no part in them.
    left = [
        ratio for ratio, action in zip(demand, does, strict=True) if action is WhenCritical.SERVE
    ]
    parts = iter(split(shares, [ratio / sum(left) for ratio in left]) if left else ())
    static = (0.0,) * (len(shares) - 1) + (1.0,)
    return tuple(
        _plan(
            request_class,
            model,
            ratio=ratio,
            part=next(parts) if action is WhenCritical.SERVE else static,
            does=action,
        )
        for request_class, ratio, action in zip(classes, demand, does, strict=True)
    )


def _plan(
    request_class: RequestClass,
    model: ModelPlan,
    *,
    ratio: float,
    part: Sequence[float],
    does: WhenCritical,
) -> ClassPlan:
    weights = allocate([share if share >= _LEAST else 0.0 for share in part], TIER_WEIGHT_TOTAL)
    return ClassPlan(
        name=request_class.name,
        demand_ratio=ratio,
        weights=weights,
        is_shed=does is not WhenCritical.SERVE,
        is_rejected=does is WhenCritical.REJECT,
        reason=_reason(model, weights, ratio=ratio, does=does),
    )


def _reason(
    model: ModelPlan, weights: Sequence[int], *, ratio: float, does: WhenCritical
) -> Reason:
    first = model.tiers[0]
    inputs: dict[str, float | str] = {"demand_ratio": ratio, "first_tier_share": first.share}
    if does is not WhenCritical.SERVE:
        given = "the static answer" if does is WhenCritical.STATIC else "a 429"
        text = f"{first.name} is critical: requests of this class get {given}."
        return Reason(rule="class_shed", text=text, inputs=inputs)
    if weights[0] == TIER_WEIGHT_TOTAL:
        text = f"All of it fits {first.name}."
        return Reason(rule="class_fits", text=text, inputs=inputs)
    if weights[0] == 0:
        text = f"The classes before it take all that {first.name} is given."
        return Reason(rule="class_spills", text=text, inputs=inputs)
    text = f"A part of it fits {first.name}, beside the classes before it."
    return Reason(rule="class_spills", text=text, inputs=inputs)


def dump(division: Division) -> dict[str, object]:
    """Return as plain JSON values what `restore` continues with."""
    none = Observed(counts=(0.0,) * len(division.classes), at=0.0)
    return {
        "names": [str(each.name) for each in division.classes],
        "models": {
            str(model): {
                "counts": list(division.observed.get(model, none).counts),
                "ratios": list(divided.ratios),
            }
            for model, divided in division.divided.items()
        },
    }


def restore(classes: tuple[RequestClass, ...], data: object, now: float) -> Division:
    """Continue with what `dump` wrote; other classes keep what fits them.

    Raises:
        ValueError: The data are not from `dump`; the text names path, value and expectation.
    """
    names = data.get("names") if isinstance(data, dict) else None
    models = data.get("models") if isinstance(data, dict) else None
    if not isinstance(names, list) or not isinstance(models, dict):
        raise _wrong("state.classes", data, "names and models")
    observed: dict[ModelName, Observed] = {}
    divided: dict[ModelName, Divided] = {}
    for name, kept in models.items():
        path = f"state.classes.models.{name}"
        counts = _numbers(kept, "counts", len(names), path)
        observed[ModelName(name)] = Observed(counts=counts, at=now)
        divided[ModelName(name)] = Divided(ratios=_numbers(kept, "ratios", len(names), path))
    before = tuple(RequestClass(name=ClassName(str(name))) for name in names)
    division = Division(classes=before, observed=observed, divided=divided)
    if tuple(each.name for each in classes) == tuple(names):
        return replace(division, classes=classes)
    return retarget(division, classes)


def _numbers(kept: object, key: str, count: int, path: str) -> tuple[float, ...]:
    values = kept.get(key) if isinstance(kept, dict) else None
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(isinstance(value, int | float) and isfinite(value) for value in values)
        or min(values, default=0.0) < 0.0
    ):
        raise _wrong(f"{path}.{key}", values, f"{count} numbers of at least 0")
    return tuple(float(value) for value in values)


def _wrong(path: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{path}: {value!r}; expected {expected}")
