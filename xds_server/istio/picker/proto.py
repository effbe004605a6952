"""The only module of the picker that knows Envoy's ext_proc messages: bytes to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from google.protobuf.message import DecodeError

SERVICE_FILES = (wire,)
"""Loaded so that server reflection can describe the service, which is a handler of bytes."""
CHUNK_BYTES = 62_000
"""Of a body in one response: Envoy takes less than 64 KiB."""
DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key, as the endpoint picker protocol 1.0 has it."""
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
LB = "envoy.lb"
SUBSET_HINT = "envoy.lb.subset_hint"

_TOOK = "x-envoy-upstream-service-time"
_NONE: Mapping[str, str] = {}
_OVERWRITE = 2  # HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


class BadMessageError(ValueError):
    """Bytes that are not the message that was expected."""


class BodyMode(IntEnum):
    """How a gateway sends bodies (`ProcessingMode.BodySendMode`)."""

    NONE = processing_mode_pb2.ProcessingMode.NONE
    STREAMED = processing_mode_pb2.ProcessingMode.STREAMED
    BUFFERED = processing_mode_pb2.ProcessingMode.BUFFERED
    BUFFERED_PARTIAL = processing_mode_pb2.ProcessingMode.BUFFERED_PARTIAL
    FULL_DUPLEX_STREAMED = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
    GRPC = processing_mode_pb2.ProcessingMode.GRPC


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """Headers of a request or of its response."""

    is_request: bool
    fields: Mapping[str, str]
    """Of a request: names in lower case; of a header that comes twice the first one."""
    is_last: bool
    """Neither body nor trailers follow."""
    subset: frozenset[str] | None = None
    """The endpoints that the gateway allows; None = all."""
    served: str | None = None
    """The endpoint that answered; None = the gateway does not say."""
    is_local: bool = False
    """Of a response: the gateway itself answers with an error; no engine does."""
    body_modes: tuple[BodyMode, BodyMode] | None = None
    """How bodies of requests and responses come; None = the gateway does not say."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of a body."""

    is_request: bool
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Trailers:
    """The end of a body that has trailers."""

    is_request: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client gets instead of an engine's answer."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)
    details: str


Message = Headers | Chunk | Trailers


def parse(raw: bytes) -> Message:
    """Parse a ProcessingRequest.

    Raises:
        BadMessageError: Not such a message, or an empty one.
    """
    try:
        message = wire.ProcessingRequest.FromString(raw)
    except DecodeError as error:
        raise BadMessageError(f"not a ProcessingRequest: {error}") from None
    kind = message.WhichOneof("request")
    if kind == "response_body":
        part = message.response_body
        return Chunk(False, part.body, part.end_of_stream)
    if kind == "request_body":
        part = message.request_body
        return Chunk(True, part.body, part.end_of_stream)
    if kind == "request_headers":
        return _request_headers(message)
    if kind == "response_headers":
        part = message.response_headers
        return Headers(
            is_request=False,
            fields=_NONE,  # nobody asks for those of a response
            is_local=_is_local(part.headers.headers),
            is_last=part.end_of_stream,
            served=_served(message.metadata_context.filter_metadata),
        )
    if kind in ("request_trailers", "response_trailers"):
        return Trailers(kind == "request_trailers")
    raise BadMessageError("an empty ProcessingRequest")


def _request_headers(message: Any) -> Headers:
    part = message.request_headers
    modes = None
    if message.HasField("protocol_config"):
        config = message.protocol_config
        modes = _mode(config.request_body_mode), _mode(config.response_body_mode)
    return Headers(
        is_request=True,
        fields=_fields(part.headers.headers),
        is_last=part.end_of_stream,
        subset=_subset(message.metadata_context.filter_metadata),
        body_modes=modes,
    )


def _mode(number: int) -> BodyMode:
    try:
        return BodyMode(number)
    except ValueError:
        raise BadMessageError(f"body mode {number} is not known here") from None


def _fields(headers: Iterable[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in headers:
        # Envoy sends one of the two, raw_value for years now.
        value = each.raw_value.decode("utf-8", "replace") if each.raw_value else each.value
        found.setdefault(each.key, value)
    return found


def _is_local(headers: Sequence[Any]) -> bool:
    """Whether an error is the gateway's own: Envoy says of every other one how long it took."""
    if not headers or headers[0].key != ":status":
        return False
    status = headers[0].raw_value or headers[0].value.encode()
    return status[:1] == b"5" and all(each.key != _TOOK for each in headers)


def _subset(metadata: Any) -> frozenset[str] | None:
    if SUBSET_HINT not in metadata or SUBSET not in metadata[SUBSET_HINT].fields:
        return None
    value = metadata[SUBSET_HINT].fields[SUBSET]
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        texts = value.string_value.split(",")
    elif kind == "list_value":
        texts = [each.string_value for each in value.list_value.values]
    else:
        return None
    return frozenset(text.strip() for text in texts if text.strip())


def _served(metadata: Any) -> str | None:
    if LB not in metadata or SERVED not in metadata[LB].fields:
        return None
    return metadata[LB].fields[SERVED].string_value or None


# What is answered.


@lru_cache(maxsize=4096)
def request_continues(destination: str) -> bytes:
    """Return the answer to a request's headers: where it goes, as header and as metadata."""
    message = wire.ProcessingResponse()
    _set(message.request_headers.response.header_mutation, {DESTINATION: destination})
    about = message.dynamic_metadata.fields[LB].struct_value.fields[DESTINATION]
    about.string_value = destination
    return _bytes(message)


@lru_cache(maxsize=1024)
def response_continues(headers: tuple[tuple[str, str], ...], drops: tuple[str, ...] = ()) -> bytes:
    """Return the answer to a response's headers: which ones it gets, and which ones it shall not have."""
    if not headers and not drops:
        return _RESPONSE_HEADERS
    message = wire.ProcessingResponse()
    mutation = message.response_headers.response.header_mutation
    _set(mutation, dict(headers))
    mutation.remove_headers.extend(drops)
    return _bytes(message)


def chunks(data: bytes, *, is_request: bool, is_last: bool) -> list[bytes]:
    """Return the answers that pass a body on, in pieces that Envoy takes. Nothing but an end is one piece."""
    if len(data) <= CHUNK_BYTES:
        return [_chunk(data, is_request, is_last)]
    return [
        _chunk(data[at : at + CHUNK_BYTES], is_request, is_last and at + CHUNK_BYTES >= len(data))
        for at in range(0, len(data), CHUNK_BYTES)
    ]


def _chunk(data: bytes, is_request: bool, is_last: bool) -> bytes:
    message = wire.ProcessingResponse()
    part = message.request_body if is_request else message.response_body
    piece = part.response.body_mutation.streamed_response
    piece.body = data
    piece.end_of_stream = is_last
    return _bytes(message)


def trailers(*, is_request: bool) -> bytes:
    """Return the answer that passes trailers on."""
    return _REQUEST_TRAILERS if is_request else _RESPONSE_TRAILERS


def immediate(answer: Answer) -> bytes:
    """Return the answer that a client gets at once."""
    message = wire.ProcessingResponse()
    reply = message.immediate_response
    reply.status.code = answer.status
    reply.body = answer.body.encode()
    reply.details = answer.details
    _set(reply.headers, answer.headers)
    return _bytes(message)


def _set(mutation: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode()
        option.append_action = _OVERWRITE


def _bytes(message: Any) -> bytes:
    raw: bytes = message.SerializeToString()
    return raw


def _empty(kind: str) -> bytes:
    message = wire.ProcessingResponse()
    getattr(message, kind).SetInParent()
    return _bytes(message)


_RESPONSE_HEADERS = _empty("response_headers")
_REQUEST_TRAILERS = _empty("request_trailers")
_RESPONSE_TRAILERS = _empty("response_trailers")
