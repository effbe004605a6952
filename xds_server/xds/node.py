"""Who is asking: the facts of a proxy that decide what it is served (pure).

Envoy lists every extension compiled into it, about 400 of them, in its node; only what is needed is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xds_server.resources.capability import Capability

COMPOSITE_EXTENSION = "envoy.clusters.composite"
MAX_NODE_ID_BYTES = 1024
"""Istio's ids (type~ip~pod.namespace~domain) stay under 600: two DNS names of 253 characters each."""


class BadNodeError(ValueError):
    """A node that cannot be served; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A data-plane process: an Envoy or a gRPC application."""

    id: str
    cluster: str
    agent: str
    """`user_agent_name`: `envoy`, `gRPC C-core` and so on; may be empty."""
    version: str
    """Version of the agent, as text; empty when not told."""
    capability: Capability


def describe(
    *, node_id: str, cluster: str, agent: str, version: str, extensions: Collection[str]
) -> Proxy:
    """Make a proxy of the fields of its node (R2).

    Args:
        node_id: `node.id`.
        cluster: `node.cluster`.
        agent: `node.user_agent_name`.
        version: `node.user_agent_version` or the build version as text.
        extensions: Names of the extensions the proxy says it has.

    Raises:
        BadNodeError: The id is missing, too long or not printable.
    """
    if not node_id:
        raise BadNodeError("node.id is missing: expected a non-empty id in the first request")
    size = len(node_id.encode())
    if size > MAX_NODE_ID_BYTES:
        raise BadNodeError(f"node.id has {size} bytes: expected at most {MAX_NODE_ID_BYTES}")
    if not node_id.isprintable():
        raise BadNodeError(f"node.id {node_id!a} has control characters: expected text")
    return Proxy(node_id, cluster, agent, version, _capability(agent, extensions))


def _capability(agent: str, extensions: Collection[str]) -> Capability:
    if agent.lower().startswith("grpc"):
        return Capability.GRPC
    if COMPOSITE_EXTENSION in extensions:
        return Capability.COMPOSITE
    return Capability.AGGREGATE
