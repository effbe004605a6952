"""What ways told the mesh, at the moment when they did."""

from __future__ import annotations

from collections.abc import Callable

from xds_server.istio.weights import ModelWeights


class Publications:
    """Spreads what ways tell the mesh. Used on the event loop only."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[ModelWeights], None]] = []

    def subscribe(self, listener: Callable[[ModelWeights], None]) -> None:
        """Tell `listener` all weights that the mesh is told from now on; it must be quick and never raise."""
        self._listeners.append(listener)

    def tell(self, weights: ModelWeights) -> None:
        """Say that a model's weights have just gone out to the mesh."""
        for listener in self._listeners:
            listener(weights)
