"""The only module of this package that knows protobuf messages: Istio's, and those of xDS around them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError

from fleet_protos.istio.mcp.v1alpha1 import resource_pb2
from fleet_protos.istio.networking.v1alpha3 import (
    destination_rule_pb2,
    service_entry_pb2,
    virtual_service_pb2,
)
from xds_server.istio.mcp.kinds import Kind

VirtualService = virtual_service_pb2.VirtualService
HTTPRoute = virtual_service_pb2.HTTPRoute
DestinationRule = destination_rule_pb2.DestinationRule
ServiceEntry = service_entry_pb2.ServiceEntry

MESSAGES: dict[Kind, Any] = {
    Kind.SERVICE_ENTRY: ServiceEntry,
    Kind.DESTINATION_RULE: DestinationRule,
    Kind.VIRTUAL_SERVICE: VirtualService,
}
RESOURCE_TYPE = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
BODY_TYPE = "type.googleapis.com/istio.networking.v1alpha3."
"""Also where v1 was asked for: there are no messages of v1."""
CREATED_UNIX_S = 7_258_118_400
"""2200-01-01: of two objects for one host the mesh obeys the older one, and that shall be the admin's."""


class BadRequestError(ValueError):
    """Bytes that are no DiscoveryRequest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest:
    """What istiod says: what it asks for, or what it took."""

    type_url: str
    nonce: str = ""
    version: str = ""
    error: str | None = None
    """Why it refuses; None = it does not."""
    node: str = ""
    """Its id; empty unless it is the first request, or an ACK."""
    istio_version: str = ""
    revision: str = ""


def parse_request(raw: bytes) -> McpRequest:
    """Parse a DiscoveryRequest.

    Raises:
        BadRequestError: It is none.
    """
    try:
        message = discovery_pb2.DiscoveryRequest.FromString(raw)
    except DecodeError as error:
        raise BadRequestError("not a DiscoveryRequest") from error
    fields = message.node.metadata.fields
    return McpRequest(
        type_url=message.type_url,
        nonce=message.response_nonce,
        version=message.version_info,
        error=message.error_detail.message if message.HasField("error_detail") else None,
        node=message.node.id,
        istio_version=fields["ISTIO_VERSION"].string_value if "ISTIO_VERSION" in fields else "",
        revision=fields["ISTIO_REVISION"].string_value if "ISTIO_REVISION" in fields else "",
    )


def encode_response(
    *, type_url: str, version: str, nonce: str, resources: Iterable[bytes]
) -> bytes:
    """Write a DiscoveryResponse of serialized `Resource`s."""
    message = discovery_pb2.DiscoveryResponse(type_url=type_url, version_info=version, nonce=nonce)
    for each in resources:
        message.resources.add(type_url=RESOURCE_TYPE, value=each)
    encoded: bytes = message.SerializeToString()
    return encoded


def encode_body(message: Any) -> bytes:
    """Write an object's message; equal messages give equal bytes."""
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_body(kind: Kind, body: bytes) -> Any:
    """Read what `encode_body` wrote."""
    return MESSAGES[kind].FromString(body)


def encode_resource(
    *, kind: Kind, key: str, version: str, labels: tuple[tuple[str, str], ...], body: bytes
) -> bytes:
    """Write a `Resource`; `key` is `namespace/name`."""
    resource = resource_pb2.Resource()
    resource.metadata.name = key
    resource.metadata.version = version
    resource.metadata.create_time.seconds = CREATED_UNIX_S
    resource.metadata.labels.update(dict(labels))
    resource.body.type_url = BODY_TYPE + kind.value
    resource.body.value = body
    encoded: bytes = resource.SerializeToString(deterministic=True)
    return encoded


def hash_of(*parts: bytes) -> str:
    """Return a version: equal content, equal version, in every process."""
    digest = hashlib.sha256()
    for each in parts:
        digest.update(len(each).to_bytes(8, "big"))
        digest.update(each)
    return digest.hexdigest()[:16]
