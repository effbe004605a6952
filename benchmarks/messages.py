"""Discovery messages for the benchmarks' own servers and clients."""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2

Request = discovery_pb2.DiscoveryRequest
DeltaRequest = discovery_pb2.DeltaDiscoveryRequest


def response_bytes(
    type_url: str, version: str, bodies: list[tuple[str, bytes]], *, delta: bool
) -> bytes:
    """Return a serialized response whose nonce is its version."""
    if not delta:
        response = discovery_pb2.DiscoveryResponse(
            version_info=version, type_url=type_url, nonce=version
        )
        for _, body in bodies:
            response.resources.add(type_url=type_url, value=body)
        return bytes(response.SerializeToString())
    changed = discovery_pb2.DeltaDiscoveryResponse(
        system_version_info=version, type_url=type_url, nonce=version
    )
    for name, body in bodies:
        resource = changed.resources.add(name=name, version=version)
        resource.resource.type_url = type_url
        resource.resource.value = body
    return bytes(changed.SerializeToString())


def envoy_node() -> bytes:
    """Return the fields of a Node (without id) as Envoy 1.40 with composite clusters sends them."""
    node = base_pb2.Node(cluster="bench", user_agent_name="envoy")
    version = node.user_agent_build_version.version
    version.major_number, version.minor_number = 1, 40
    for name, category in (
        ("envoy.clusters.composite", "envoy.clusters"),
        ("envoy.clusters.aggregate", "envoy.clusters"),
        ("envoy.filters.http.custom_response", "envoy.filters.http"),
        ("envoy.bootstrap.internal_listener", "envoy.bootstrap"),
    ):
        node.extensions.add(name=name, category=category)
    return bytes(node.SerializeToString())
