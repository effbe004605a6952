"""From a plan to the integer weights that a mesh takes: they add up to 100 for every route. Pure.

What a mesh can route to is a host. A static tier that has one (a small server that gives the answer) is
a destination like any other. One that has none is no destination, and a mesh cannot answer a *share* of
the requests by itself (an HTTPRoute either routes or answers), so:

- its share stays with the nearest tier before it in the chain that gets anything: the one that would
  have passed it on. The mesh then sheds nothing; that tier's queue grows.
- when no tier with a host gets anything, the whole route *answers*: a `direct_response` with the static
  answer, for all requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from xds_server.core.model import ClassName
from xds_server.core.plan import ClassPlan, ModelPlan
from xds_server.core.weights import allocate
from xds_server.istio.mesh import MeshModel, MeshTier

TOTAL = 100
"""Istio before 1.15 takes no other sum, later ones any."""


class Action(StrEnum):
    """What becomes of the requests of a route."""

    FORWARD = "forward"
    """They go to hosts, by weight."""
    ANSWER = "answer"
    """All get the model's static answer."""
    REJECT = "reject"
    """All get a 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteWeights:
    """What becomes of one class of a model's requests."""

    of: ClassName | None
    """The class; None = all requests that are in none."""
    action: Action
    weights: tuple[tuple[MeshTier, int], ...] = ()
    """Every tier that the mesh has a host for, in chain order, zeros included; they add up to `TOTAL` where
    the action is to forward, and are empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """What becomes of a model's requests in the mesh."""

    model: MeshModel
    routes: tuple[RouteWeights, ...]
    """One for each class, from most to least critical; without classes one for all requests."""


def weigh(plan: ModelPlan, model: MeshModel) -> ModelWeights:
    """Return the weights of a model's hosts.

    Args:
        plan: The model's plan.
        model: The same model as the mesh knows it.
    """
    names = [each.name for each in plan.tiers]
    places = [model.tier(name) for name in names]
    if plan.classes:
        routes = tuple(_class_route(each, places) for each in plan.classes)
    else:
        routes = (_route(None, [each.weight for each in plan.tiers], places),)
    return ModelWeights(model=model, routes=routes)


def _class_route(plan: ClassPlan, places: Sequence[MeshTier | None]) -> RouteWeights:
    if plan.is_shed and plan.is_rejected:
        return RouteWeights(of=plan.name, action=Action.REJECT)
    if plan.is_shed:
        shed = [0] * (len(places) - 1) + [TOTAL]
        return _route(plan.name, shed, places)
    return _route(plan.name, plan.weights, places)


def _route(
    of: ClassName | None, weights: Sequence[int], places: Sequence[MeshTier | None]
) -> RouteWeights:
    folded = fold(weights, [place is not None for place in places])
    hosts = [place for place in places if place is not None]
    parts = [weight for weight, place in zip(folded, places, strict=True) if place is not None]
    if not any(parts):
        return RouteWeights(of=of, action=Action.ANSWER)
    return RouteWeights(
        of=of,
        action=Action.FORWARD,
        weights=tuple(zip(hosts, allocate(parts, TOTAL), strict=True)),
    )


def fold(weights: Sequence[int], has_host: Sequence[bool]) -> list[int]:
    """Give the share of tiers without a host to the nearest tier before that gets anything.

    Args:
        weights: Of the tiers, in chain order.
        has_host: Whether the mesh can route to each of them.

    Returns:
        The weights with zeros where there is no host; all zero where no host gets anything.
    """
    folded = [weight if has else 0 for weight, has in zip(weights, has_host, strict=True)]
    for index, (weight, has) in enumerate(zip(weights, has_host, strict=True)):
        if has or not weight:
            continue
        takes = [at for at in range(index) if folded[at]]
        if takes:
            folded[takes[-1]] += weight
    return folded
