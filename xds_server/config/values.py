"""Values of the configuration file: what a name, an address, a host may look like.

`document.py` turns what pydantic says about them into words.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field

from xds_server.config.addresses import parse_address, parse_endpoint
from xds_server.config.mirror import (
    SECONDS_MAX,
    SECONDS_MIN,
    Number,
    Path,
    Whole,
    is_printed,
)
from xds_server.config.names import NAME_PATTERN

HEADER_PATTERN = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
"""RFC 9110, section 5.6.2."""

TAKEN_HEADERS = frozenset(
    {
        "connection", "content-length", "content-type", "endpoint-load-metrics-format", "host",
        "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
        "x-estimated-tokens", "x-no-fallback", "x-request-class", "x-request-id", "x-static-keywords",
    }
)  # fmt: skip
"""Request headers that mean something else to proxies: they set, drop or follow them."""
TAKEN_PREFIXES = ("x-envoy-", "x-fleet-", "x-forwarded-")

LANGUAGE_PATTERN = r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$"
"""RFC 5646 in short: `de`, `pt-BR`, `zh-Hant`."""


def _is_address(text: str) -> str:
    try:
        parse_endpoint(text)
    except ValueError as error:
        raise ValueError(f"ip:port, like 10.0.0.7:8000 ({error})") from None
    return text


def _is_listen(text: str) -> str:
    try:
        parse_address(text, lowest_port=0)
    except ValueError as error:
        raise ValueError(
            f"ip:port, like 127.0.0.1:18000; port 0 takes a free one ({error})"
        ) from None
    return text


def _is_ip(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("an IP address") from None
    return text


def _is_keyword(text: str) -> str:
    word = text.removesuffix("*")
    if not word.strip() or "*" in word or not word.replace(" ", "").isprintable():
        raise ValueError("a word or a phrase, with a * at the end at most, like refund*")
    return text


def _has_body(status: int) -> int:
    if status in (204, 205) or 300 <= status <= 399:
        raise ValueError("a status that comes with a body: 200, or 400-599")
    return status


def _is_domain(text: str) -> str:
    inner = text.removeprefix("*") if text.startswith("*") else text.removesuffix("*")
    if "*" in inner or "/" in inner or (inner and not is_printed(inner)):
        raise ValueError("a host name, exact or with a * at one end, like *.example.com")
    host, colon, port = inner.rpartition(":")
    if colon and port.isdigit() and not host.endswith(":") and host.count(":") == 0:
        raise ValueError("a host name without a port: the port of a request is not looked at")
    return text.lower()


def _is_prefix(text: str) -> str:
    """Proxies compare what is left of a path after `..` was followed, without its query."""
    if "?" in text or "#" in text or {".", ".."} & set(text.split("/")):
        raise ValueError("a start of paths without ?, #, . and .. between slashes")
    return text


def _is_shown(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text without line breaks or other control characters")
    return text


RATE_MAX = 1_000_000_000
"""What Envoy's token buckets hold."""
RATE_MIN = 0.001
"""One in a quarter of an hour: a share of a share of less takes longer than durations last."""
COUNT_MAX = 1_000_000
TOKENS_MAX = 1_000_000_000
LIST, MAPPING = "<list>", "<mapping>"
"""Tags of the two shapes of `instances`; they never show in a problem's path."""

Ip = Annotated[str, AfterValidator(_is_ip)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
ListenerPort = Annotated[Whole, Field(ge=0, le=65535)]
Address = Annotated[str, AfterValidator(_is_address)]
Listen = Annotated[str, AfterValidator(_is_listen)]
Text = Annotated[str, Field(min_length=1)]
Shown = Annotated[Text, AfterValidator(_is_shown)]
Prefix = Annotated[Path, AfterValidator(_is_prefix)]
Duration = Annotated[Number, Field(ge=SECONDS_MIN, le=SECONDS_MAX)]
PublicName = Annotated[str, Field(min_length=1, max_length=256)]
HeaderName = Annotated[str, Field(pattern=HEADER_PATTERN, max_length=256)]
Keyword = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_is_keyword)]
Language = Annotated[str, Field(pattern=LANGUAGE_PATTERN)]
AnswerStatus = Annotated[Whole, Field(ge=200, le=599), AfterValidator(_has_body)]
Domain = Annotated[Text, AfterValidator(_is_domain)]


def is_taken(header: str) -> bool:
    """Whether a request header means something else to proxies."""
    lower = header.lower()
    return lower in TAKEN_HEADERS or lower.startswith(TAKEN_PREFIXES)
