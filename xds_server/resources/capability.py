"""What a proxy can be given: the groups for which different resources are generated."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """How a proxy gets from a failing tier to the next by itself."""

    COMPOSITE = "composite"
    """Envoy with the composite cluster (1.40+): retries walk the chain in order."""
    AGGREGATE = "aggregate"
    """Older Envoy: an aggregate cluster with `previous_priorities` retries."""
    GRPC = "grpc"
    """Proxyless gRPC: weighted clusters over plain EDS clusters, no chain."""
