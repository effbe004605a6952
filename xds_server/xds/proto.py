"""The only module of this package that knows Envoy's messages: bytes to values and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envoy.service.cluster.v3 import cds_pb2
from envoy.service.discovery.v3 import ads_pb2, discovery_pb2
from envoy.service.endpoint.v3 import eds_pb2
from envoy.service.extension.v3 import config_discovery_pb2
from envoy.service.listener.v3 import lds_pb2
from envoy.service.route.v3 import rds_pb2
from envoy.service.status.v3 import csds_pb2
from google.protobuf.message import DecodeError

from xds_server.xds.answer import Answer
from xds_server.xds.features import COMPOSITE, EXTENSIONS
from xds_server.xds.node import Proxy, describe
from xds_server.xds.requests import DeltaRequest, SotwRequest

SERVICE_FILES = (ads_pb2, cds_pb2, config_discovery_pb2, csds_pb2, eds_pb2, lds_pb2, rds_pb2)
"""Loaded so that server reflection can describe the services, which are handlers of bytes."""

MAX_CACHED_REQUEST_BYTES = 8192
_CACHED_REQUESTS = 1024

_EXTENSIONS = tuple(
    (each.name, b"\x0a" + bytes([len(each.name)]) + each.name.encode()) for each in EXTENSIONS
)
"""Field 1, the name, of each `Extension`. A node lists 400 of them: looking for the bytes costs 5 us a name,
making 400 Python objects 100 us, for each of the thousands of proxies that reconnect at once."""


class BadRequestError(ValueError):
    """Bytes that are not the message that was expected."""


@dataclass(frozen=True, slots=True)
class GenericStatus:
    """One type of a proxy in the terms of CSDS."""

    type_url: str
    version: str
    status: str
    """A name of `envoy.service.status.v3.ConfigStatus`."""
    error: str
    error_version: str


def parse_sotw(raw: bytes) -> SotwRequest:
    """Parse a DiscoveryRequest.

    Nonces are shared by all streams, so the ACKs of a fleet are equal bytes: parsed once.

    Raises:
        BadRequestError: Not a DiscoveryRequest.
        BadNodeError: A node that cannot be served.
    """
    return _parse_sotw_once(raw) if len(raw) <= MAX_CACHED_REQUEST_BYTES else _parse_sotw(raw)


def parse_delta(raw: bytes) -> DeltaRequest:
    """Parse a DeltaDiscoveryRequest.

    Raises:
        BadRequestError: Not a DeltaDiscoveryRequest.
        BadNodeError: A node that cannot be served.
    """
    return _parse_delta_once(raw) if len(raw) <= MAX_CACHED_REQUEST_BYTES else _parse_delta(raw)


def _parse_sotw(raw: bytes) -> SotwRequest:
    message = _decode(discovery_pb2.DiscoveryRequest, raw)
    return SotwRequest(
        type_url=message.type_url,
        names=frozenset(message.resource_names),
        version=message.version_info,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
        proxy=_proxy(message.node, raw) if message.HasField("node") else None,
    )


def _parse_delta(raw: bytes) -> DeltaRequest:
    message = _decode(discovery_pb2.DeltaDiscoveryRequest, raw)
    return DeltaRequest(
        type_url=message.type_url,
        subscribe=frozenset(message.resource_names_subscribe),
        unsubscribe=frozenset(message.resource_names_unsubscribe),
        known=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
        proxy=_proxy(message.node, raw) if message.HasField("node") else None,
    )


_parse_sotw_once = lru_cache(_CACHED_REQUESTS)(_parse_sotw)
_parse_delta_once = lru_cache(_CACHED_REQUESTS)(_parse_delta)


def _decode(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise BadRequestError(f"not a {kind.DESCRIPTOR.full_name}: {error}") from None


def _proxy(node: Any, raw: bytes) -> Proxy:
    version = node.user_agent_version
    if not version and node.HasField("user_agent_build_version"):
        number = node.user_agent_build_version.version
        version = f"{number.major_number}.{number.minor_number}.{number.patch}"
    return describe(
        node_id=node.id,
        cluster=node.cluster,
        agent=node.user_agent_name,
        version=version,
        missing=_missing(node, raw),
    )


def _missing(node: Any, raw: bytes) -> tuple[str, ...]:
    missing = tuple(name for name, listed in _EXTENSIONS if listed not in raw)
    # An agent that lists nothing says nothing, but composite is too new to be taken for granted.
    return missing if len(node.extensions) else (COMPOSITE,)


def encode_sotw(type_url: str, answer: Answer) -> bytes:
    """Serialize a DiscoveryResponse without its nonce."""
    message = discovery_pb2.DiscoveryResponse(type_url=type_url, version_info=answer.version)
    for each in answer.resources:
        message.resources.add(type_url=type_url, value=each.body)
    return bytes(message.SerializeToString())


def encode_delta(type_url: str, answer: Answer) -> bytes:
    """Serialize a DeltaDiscoveryResponse without its nonce."""
    message = discovery_pb2.DeltaDiscoveryResponse(
        type_url=type_url, system_version_info=answer.version, removed_resources=answer.removed
    )
    for each in answer.resources:
        entry = message.resources.add(name=each.name, version=each.version)
        entry.resource.type_url = type_url
        entry.resource.value = each.body
    return bytes(message.SerializeToString())


def with_nonce(body: bytes, nonce: str) -> bytes:
    """Append field 5, the nonce of both kinds of responses, to a serialized response."""
    text = nonce.encode()
    return b"%b\x2a%c%b" % (body, len(text), text)


def csds_config(proxy: Proxy, types: Iterable[GenericStatus]) -> Any:
    """Return a `ClientConfig` of the client status discovery service."""
    message = csds_pb2.ClientConfig()
    message.node.id = proxy.id
    message.node.cluster = proxy.cluster
    message.node.user_agent_name = proxy.agent
    message.node.user_agent_version = proxy.version
    for each in types:
        entry = message.generic_xds_configs.add(
            type_url=each.type_url,
            version_info=each.version,
            config_status=csds_pb2.ConfigStatus.Value(each.status),
        )
        if each.error:
            entry.error_state.details = each.error
            entry.error_state.version_info = each.error_version
    return message


def csds_response(configs: Iterable[Any]) -> bytes:
    """Serialize a `ClientStatusResponse`."""
    return bytes(csds_pb2.ClientStatusResponse(config=configs).SerializeToString())


def csds_node_ids(raw: bytes) -> frozenset[str] | None:
    """Return the ids that a `ClientStatusRequest` asks for exactly, None when it asks for all.

    Raises:
        BadRequestError: Not such a request, or one with a matcher that is not an exact id.
    """
    message = _decode(csds_pb2.ClientStatusRequest, raw)
    ids = set()
    for each in message.node_matchers:
        if each.node_metadatas or each.node_id.WhichOneof("match_pattern") != "exact":
            raise BadRequestError("node_matchers: expected node_id with exact, and nothing else")
        ids.add(each.node_id.exact)
    return frozenset(ids) or None
