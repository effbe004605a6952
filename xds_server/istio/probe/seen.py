"""What a sidecar is told of a host, and whether that is what we want. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xds_server.istio.mesh import route_name
from xds_server.istio.weights import Action, ModelWeights, RouteWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRoute:
    """One route of a virtual host."""

    name: str
    """As istiod names it: that of the VirtualService's entry, or `default` where none decides."""
    clusters: tuple[tuple[str, int], ...] = ()
    """Clusters with their weights, in order; a cluster that is alone has 1. Empty where nothing is forwarded."""
    status: int | None = None
    """Of a route that answers by itself."""


Seen = tuple[SeenRoute, ...]
"""The routes of a host, in order."""


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    subset: str
    port: int | None

    @classmethod
    def of_cluster(cls, name: str) -> _Place | None:
        """Read `outbound|8000|v1|HOST`; None for any other cluster."""
        parts = name.split("|")
        if len(parts) != 4 or parts[0] != "outbound" or not parts[1].isdigit():
            return None
        return cls(parts[3], parts[2], int(parts[1]))


def difference(wanted: ModelWeights, seen: Seen | None) -> str | None:
    """Say in what a sidecar is not told what we want; None if it is.

    Args:
        wanted: What a model's requests shall get.
        seen: Routes of the model's host; None = the sidecar has no such host.
    """
    host = wanted.model.host
    if seen is None:
        return f"sidecars have no HTTP routes for {host}: is it a host of the mesh, with a port of that name?"
    for route in wanted.routes:
        named = [each for each in seen if is_named(wanted, route, each.name)]
        # Weights in a VirtualService of somebody else's are under that one's names.
        if not any(_is_met(route, each) for each in named or seen):
            return _doubt(wanted, route, named or seen)
    return None


def is_named(wanted: ModelWeights, route: RouteWeights, name: str) -> bool:
    """Whether a route of a sidecar has the name that we give a route; of a delegate the root's comes before it."""
    ours = route_name(wanted.model, route.of)
    return name == ours or name.endswith(f"-{ours}")


def describe(route: RouteWeights) -> str:
    """Write what requests shall get, for people: `primary=90% fallback=10%`."""
    if route.action is not Action.FORWARD:
        return "the static answer" if route.action is Action.ANSWER else "a 429"
    return " ".join(f"{tier.name}={weight}%" for tier, weight in route.weights)


def _is_met(route: RouteWeights, seen: SeenRoute) -> bool:
    if route.action is Action.ANSWER:
        return seen.status is not None and seen.status != 429
    if route.action is Action.REJECT:
        return seen.status == 429
    found = _places(seen.clusters)
    if found is None or not found:
        return False
    wanted = {
        _Place(tier.host, tier.subset or "", tier.port): weight
        for tier, weight in route.weights
        if weight
    }
    total, whole = sum(found.values()), sum(wanted.values())
    return len(found) == len(wanted) and all(
        any(_is_at(place, at) and each * whole == weight * total for at, each in found.items())
        for place, weight in wanted.items()
    )


def _places(clusters: Iterable[tuple[str, int]]) -> Mapping[_Place, int] | None:
    """Add up weights by place; None if one of the clusters is none of istiod's."""
    found: dict[_Place, int] = {}
    for name, weight in clusters:
        place = _Place.of_cluster(name)
        if place is None:
            return None
        found[place] = found.get(place, 0) + weight
    return {place: weight for place, weight in found.items() if weight}


def _is_at(wanted: _Place, seen: _Place) -> bool:
    """Whether a cluster is where a tier is; a tier without a port is at any."""
    return (wanted.host, wanted.subset) == (seen.host, seen.subset) and (
        wanted.port is None or wanted.port == seen.port
    )


def _doubt(wanted: ModelWeights, route: RouteWeights, seen: Sequence[SeenRoute]) -> str:
    """Say what is there instead, and who may have put it there."""
    ours = {(tier.host, tier.subset or "") for tier in wanted.model.tiers}
    about = f" (class {route.of})" if route.of is not None else ""
    head = f"{wanted.model.host}{about}: wanted {describe(route)}"
    known = [each for each in seen if _leads_to(each, ours)]
    if known:
        return f"{head}, sidecars have {_told(known[0])}"
    names = ", ".join(sorted({each.name or "-" for each in seen})) or "none"
    return (
        f"{head}, but the routes of sidecars ({names}) lead elsewhere: another VirtualService for this host is "
        f"older, or ours was refused; the log of istiod says which"
    )


def _leads_to(seen: SeenRoute, ours: set[tuple[str, str]]) -> bool:
    places = [_Place.of_cluster(name) for name, _ in seen.clusters]
    return any(place is not None and (place.host, place.subset) in ours for place in places)


def _told(seen: SeenRoute) -> str:
    total = sum(weight for _, weight in seen.clusters) or 1
    return " ".join(f"{name}={100 * weight / total:g}%" for name, weight in seen.clusters)
