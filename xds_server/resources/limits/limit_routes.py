"""What limits add to the routes: which model and class a request counts for, and what is refused before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xds_server.core.model import Model, ModelName, Topology
from xds_server.core.policy import EvidencePolicy
from xds_server.resources.bodies.token_cost import cost_command
from xds_server.resources.limits.admission import TOKENS_HEADER, counts_tokens, limits_clients
from xds_server.resources.limits.entrances import is_gated
from xds_server.resources.limits.gates import PATIENCE_HEADER, Patience, gate_listener
from xds_server.resources.limits.limit_rules import CLASS, COUNTED, MODEL, YES, Unit, tier_rules
from xds_server.resources.limits.refusals import uncounted_routes
from xds_server.resources.names import METADATA
from xds_server.resources.proto import Route
from xds_server.resources.snapshot import Resource

_OVERWRITE = 2
"""`HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD`: a client's own word is not believed."""


class LimitRoutes:
    """The part that limits have in the routes of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._marks = limits_clients(topology)
        tenants = topology.tenants
        self._named_by = None if tenants is None or tenants.hashed else tenants.header
        self._patiences: dict[ModelName, set[Patience]] = {}

    def refusals(self, model: Model, conditions: Sequence[Any]) -> list[Route]:
        """Return the routes that come before a model's own; `conditions` on the body make requests its."""
        if not counts_tokens(self._topology, model):
            return []
        return uncounted_routes(model.prefix, conditions)

    def mark(self, route: Route, model: Model, class_name: str = "") -> None:
        """Say on a route whose requests it carries, and have it tell gates what they cost and may take."""
        if self._marks:
            fields = route.metadata.filter_metadata[METADATA].fields
            fields[MODEL].string_value = model.name
            fields[COUNTED].string_value = YES
            if class_name:
                fields[CLASS].string_value = class_name
        if self._named_by is not None and route.HasField("route"):
            # Of a header that is there twice the first value was counted: nobody may choose another one later.
            _tell(route, self._named_by, f"%REQ({self._named_by})%")
        gated = [tier for tier in model.tiers if is_gated(tier)]
        if gated and route.HasField("route"):
            patience = Patience.of(route)
            self._patiences.setdefault(model.name, set()).add(patience)
            _tell(route, PATIENCE_HEADER, str(patience))
        if any(rule.unit is Unit.TOKENS for tier in gated for rule in tier_rules(tier)):
            _tell(route, TOKENS_HEADER, cost_command())

    def gate_listeners(self, evidence: EvidencePolicy) -> Iterator[Resource]:
        """Yield the listeners of all gates. Every route must have been marked before."""
        for model in self._topology.models:
            for tier in model.tiers:
                if is_gated(tier):
                    yield gate_listener(model, tier, self._patiences[model.name], evidence)


def _tell(route: Route, header: str, value: str) -> None:
    option = route.request_headers_to_add.add(append_action=_OVERWRITE)
    option.header.key, option.header.value = header, value
