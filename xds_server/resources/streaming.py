"""Which requests want a stream: the body's `stream`, copied to where routes can match it.

Parsing the body is the dearest thing a proxy does for a request, so only those parts that need the answer
have this filter.
"""

from __future__ import annotations

from typing import Any

from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed

_KEY = "stream"
_CONTENT_TYPES = tuple(
    f"application/json{rest}"
    for rest in ("", "; charset=utf-8", ";charset=utf-8", "; charset=UTF-8", ";charset=UTF-8")
)
"""Envoy compares the whole header."""


def stream_filter() -> Any:
    """Author the filter; a body that is not JSON, or without `stream`, leaves no mark."""
    j = typed.json_to_metadata
    rule = j.JsonToMetadataRule(
        selectors=[j.JsonToMetadataSelector(key=_KEY)],
        on_present=j.JsonToMetadataKeyValuePair(metadata_namespace=METADATA, key=_KEY),
    )
    rules = j.JsonToMetadataMatchRules(rules=[rule], allow_content_types=list(_CONTENT_TYPES))
    return typed.hcm.HttpFilter(
        name="envoy.filters.http.json_to_metadata",
        typed_config=pack(j.JsonToMetadata(request_rules=rules)),
    )


def asks_for_stream(*, value: bool) -> Any:
    """Author the route condition "the body says `stream: <value>`"."""
    m = typed.matcher
    return m.MetadataMatcher(
        filter=METADATA,
        path=[m.MetadataMatcherPathSegment(key=_KEY)],
        value=m.ValueMatcher(bool_match=value),
    )
