"""What the fields of a request may be (RFC 9113, 8.2 and 8.3). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xds_server.istio.picker.framing import frames

Fields = Sequence[tuple[str, str]]

_NAME = re.compile(r":?[!#$%&'*+.^_`|~0-9a-z-]+")
_NO_VALUE = re.compile(r"[\x00\r\n]|\A[ \t]|[ \t]\Z")
_REQUIRED = (":method", ":scheme", ":path")
_PSEUDO = frozenset((*_REQUIRED, ":authority"))
_OF_A_CONNECTION = frozenset(
    ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
)
_LENGTH: Final = "content-length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields of one block of headers."""

    fields: dict[str, str]
    """By name; of one that comes twice the last."""
    length: int | None
    """Bytes of the body, where the client says so."""
    fault: str | None
    """What is wrong with them as those of a request."""
    trailing_fault: str | None
    """What is wrong with them as those that end a request."""


def head(fields: Fields) -> Head:
    """Judge the fields of a block."""
    by_name = dict(fields)
    fault, pseudo = _fields(fields)
    length = None
    said = by_name.get(_LENGTH)
    if said is not None:
        if said.isascii() and said.isdigit() and len(said) < 20:
            length = int(said)
        else:
            fault = fault or f"content-length is {said[:20]!a}"
        if len({value for name, value in fields if name == _LENGTH}) > 1:
            fault = fault or "content-length says two things"
    return Head(
        fields=by_name,
        length=length,
        fault=fault or _request(by_name, pseudo),
        trailing_fault=fault or ("trailers of a kind of their own" if pseudo else None),
    )


def _fields(fields: Fields) -> tuple[str | None, int]:
    """Return what is wrong with any field, and how many are pseudo-headers."""
    pseudo, is_regular = 0, False
    for name, value in fields:
        if _NAME.fullmatch(name) is None:
            return f"a field with the name {name[:50]!a}", pseudo
        if _NO_VALUE.search(value) is not None:
            return f"{name[:50]}: no value may have that", pseudo
        if name[0] != ":":
            is_regular = True
            if name in _OF_A_CONNECTION or (name == "te" and value != "trailers"):
                return f"{name} is no field of HTTP/2", pseudo
            continue
        if is_regular:
            return f"{name[:50]} after a regular field", pseudo
        if name not in _PSEUDO:
            return f"{name[:50]} is not known", pseudo
        pseudo += 1
    return None, pseudo


def _request(fields: dict[str, str], pseudo: int) -> str | None:
    for name in _REQUIRED:
        if not fields.get(name):
            return f"no {name}"
    if pseudo != sum(name in fields for name in _PSEUDO):
        return "a pseudo-header comes twice"
    return None


def refusal_of(head: Head) -> bytes | None:
    """Return the block that answers a request which is none of gRPC's; None = it is one."""
    if head.fields[":method"] != "POST":
        return frames.METHOD_NOT_ALLOWED
    kind = head.fields.get("content-type", "")
    if kind == "application/grpc" or kind.startswith(("application/grpc+", "application/grpc;")):
        return None
    return frames.UNSUPPORTED_MEDIA_TYPE
