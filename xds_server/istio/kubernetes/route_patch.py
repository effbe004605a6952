"""Weights in a VirtualService that is somebody else's: the smallest JSON Patch, guarded by tests. Pure.

Nothing but the numbers of one named route is touched. The patch tests the route's name and every
destination that it weighs, and that the object is still the version that we looked at: an edit in between (a
destination more, say) makes it fail, not hit a neighbor, and so does a patch that arrives after the lease is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xds_server.core.model import ModelName
from xds_server.istio.kubernetes.errors import Ref
from xds_server.istio.kubernetes.objects import destination, summaries
from xds_server.istio.mesh import MeshTier
from xds_server.istio.weights import Action, ModelWeights

Document = dict[str, Any]


class PatchRefusedError(Exception):
    """The VirtualService is not as the configuration says; nothing may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """A route of somebody else's whose weights we are asked to set."""

    ref: Ref
    model: ModelName
    route: str
    """Name of the HTTP route."""
    weights: ModelWeights
    """Of all requests of the model together: one route."""

    @property
    def summary(self) -> str:
        """Write the weights on one line."""
        return summaries(self.weights)

    def operations(self, live: Document) -> list[Document]:
        """Return the patch; empty where the weights are as they shall be.

        Raises:
            PatchRefusedError: There is no such route, or it goes elsewhere than to our tiers.
        """
        (told,) = self.weights.routes
        if told.action is not Action.FORWARD:
            raise PatchRefusedError(
                f"No tier of {self.model} that has a host may take requests, and weights cannot say so: the "
                f"weights of route {self.route!r} in {self.ref} stay as they are. Give the static tier a host in "
                "istio.models, or use a delegate VirtualService"
            )
        index, route = self._find(live)
        base = f"/spec/http/{index}"
        tests: list[Document] = [{"op": "test", "path": f"{base}/name", "value": self.route}]
        if version := (live.get("metadata") or {}).get("resourceVersion"):
            tests.append({"op": "test", "path": "/metadata/resourceVersion", "value": version})
        writes: list[Document] = []
        wanted = list(told.weights)
        written = route.get("route") or []
        for at, each in enumerate(written):
            place = each.get("destination") or {}
            found = next(
                (pair for pair in wanted if is_at(place, pair[0], self.ref.namespace)), None
            )
            if found is None:
                raise PatchRefusedError(
                    f"Route {self.route!r} in {self.ref} goes to {_shown(place)}, which is no tier of "
                    f"{self.model}: its share would be a guess. Add it to istio.models, or take it out of the route"
                )
            wanted.remove(found)
            tests.append({"op": "test", "path": f"{base}/route/{at}/destination", "value": place})
            # The API leaves a weight of 0 out; a single destination may have none either.
            if int(each.get("weight") or 0) != found[1]:
                path = f"{base}/route/{at}/weight"
                writes.append({"op": "add", "path": path, "value": found[1]})
        if lost := [tier for tier, weight in wanted if weight]:
            missing = ", ".join(_shown(destination(each)) for each in lost)
            raise PatchRefusedError(
                f"Route {self.route!r} in {self.ref} has no destination {missing}, which shall get requests of "
                f"{self.model}: add it with weight 0"
            )
        return [*tests, *writes] if writes else []

    def _find(self, live: Document) -> tuple[int, Document]:
        routes = (live.get("spec") or {}).get("http") or []
        found = [(at, each) for at, each in enumerate(routes) if each.get("name") == self.route]
        if len(found) == 1:
            return found[0]
        names = ", ".join(repr(each["name"]) for each in routes if each.get("name")) or "none"
        said = "has several HTTP routes" if found else "has no HTTP route"
        raise PatchRefusedError(
            f"{self.ref} {said} named {self.route!r} (its names: {names}): name one so, or mend "
            "istio.kubernetes.patch"
        )


def full_host(host: str, namespace: str) -> str:
    """Return what Istio makes of a host that is written without its namespace."""
    return host if "." in host else f"{host}.{namespace}.svc.cluster.local"


def is_at(place: Document, tier: MeshTier, namespace: str) -> bool:
    """Return whether a destination of somebody else's is a tier. A port that one side leaves out fits any."""
    port = (place.get("port") or {}).get("number")
    return (
        full_host(str(place.get("host")), namespace) == tier.host
        and (place.get("subset") or None) == tier.subset
        and (port is None or tier.port is None or port == tier.port)
    )


def _shown(place: Document) -> str:
    subset = f" subset {place['subset']}" if place.get("subset") else ""
    port = (place.get("port") or {}).get("number")
    return f"{place.get('host')}{subset}{f' port {port}' if port else ''}"
