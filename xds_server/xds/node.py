"""Who is asking: the facts of a proxy that decide what it is served (pure).

Envoy lists every extension compiled into it, about 400 of them, in its node; only what is needed is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xds_server.resources.capability import Capability
from xds_server.xds.features import COMPOSITE, lacks, numbers

MAX_NODE_ID_BYTES = 1024
"""Istio's ids (type~ip~pod.namespace~domain) stay under 600: two DNS names of 253 characters each."""

COMPOSITE_SINCE = (1, 40)


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
    lacks: tuple[str, ...] = ()
    """What it does without, in words; see `features`."""


def describe(
    *,
    node_id: str,
    cluster: str,
    agent: str,
    version: str,
    missing: Collection[str] = (),
) -> Proxy:
    """Make a proxy of the fields of its node (R2).

    Args:
        node_id: `node.id`.
        cluster: `node.cluster`.
        agent: `node.user_agent_name`.
        version: `node.user_agent_version` or the build version as text.
        missing: Those of `features.EXTENSIONS` that are not among its extensions.

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
    composite = COMPOSITE not in missing and _skips_empty_members(version)
    capability = _capability(agent, composite=composite)
    without = lacks(capability=capability, missing=missing, version=version)
    return Proxy(node_id, cluster, agent, version, capability, without)


def _capability(agent: str, *, composite: bool) -> Capability:
    if agent.lower().startswith("grpc"):
        return Capability.GRPC
    return Capability.COMPOSITE if composite else Capability.AGGREGATE


def _skips_empty_members(version: str) -> bool:
    """Whether the composite cluster passes over members without a usable host: since Envoy 1.40.

    A version that is not told does not speak against the extension that is.
    """
    told = numbers(version)
    return told is None or told >= COMPOSITE_SINCE
