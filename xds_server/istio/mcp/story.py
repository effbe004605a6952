"""What istiods were told, as rows of the history: of an object at most one a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xds_server import logs
from xds_server.clock import Clock
from xds_server.istio.mcp.catalog import Catalog, Key, MeshObject, title
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.weights import Action, ModelWeights
from xds_server.observability.history import History

GAP_S = 1.0
"""Least time between two rows of one object; the newest is written when it is over."""


class Story:
    """Writes rows, and holds those back that come too soon."""

    def __init__(self, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._held: dict[Key, tuple[str, str]] = {}
        """Text and model of the newest row, by object."""
        self._written_at: dict[Key, float] = {}
        self._log = logs.get("config-source")

    def published(
        self, before: Catalog | None, after: Catalog, weights: Mapping[str, ModelWeights]
    ) -> None:
        """Note what is new, different and gone."""
        said = {} if before is None else before.objects
        for key, each in after.objects.items():
            if key not in said or said[key].version != each.version:
                self._held[key] = (_text(each, weights), each.model)
        for key in said.keys() - after.objects.keys():
            self._held[key] = ("is no longer published", said[key].model)
        self.flush()

    def due_in_s(self) -> float | None:
        """Return when held rows are due; None = there are none."""
        if not self._held:
            return None
        due = min(self._written_at.get(key, 0.0) + GAP_S for key in self._held)
        return max(0.0, due - self._clock())

    def flush(self) -> None:
        """Write the rows that are due."""
        now = self._clock()
        for key, (text, model) in list(self._held.items()):
            if now < self._written_at.get(key, float("-inf")) + GAP_S:
                continue
            del self._held[key]
            self._written_at[key] = now
            self._log.info(logs.MESH_OBJECT_PUBLISHED, object=title(key), now=text)
            self._history.mesh(logs.MESH_OBJECT_PUBLISHED, f"{title(key)}: {text}.", model=model)


def _text(each: MeshObject, weights: Mapping[str, ModelWeights]) -> str:
    message = each.message
    match each.key[0]:
        case Kind.VIRTUAL_SERVICE:
            found = weights.get(each.model)
            return "published" if found is None else "; ".join(_routes(found))
        case Kind.DESTINATION_RULE:
            return f"{message.host}, subsets {', '.join(one.name for one in message.subsets) or 'none'}"
        case Kind.SERVICE_ENTRY:
            count = len(message.endpoints)
            return f"{', '.join(message.hosts)}, {count} endpoint{'' if count == 1 else 's'}"


def _routes(weights: ModelWeights) -> Iterator[str]:
    for route in weights.routes:
        of = "" if route.of is None else f"{route.of}: "
        match route.action:
            case Action.FORWARD:
                parts = (f"{tier.name}={weight}%" for tier, weight in route.weights)
                yield of + " ".join(parts)
            case Action.ANSWER:
                yield f"{of}the static answer"
            case Action.REJECT:
                yield f"{of}429"
