"""What a path asks for, in the request's metadata: for filters that see only the response."""

from __future__ import annotations

from typing import Any

from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed
from xds_server.resources.static.answer import Dialect

KEY = "path"
ENDINGS = {Dialect.CHAT: "chat/completions", Dialect.TEXT: "completions"}
"""What paths end in. Chat comes first: its paths end like the others."""


def path_pattern(dialect: Dialect) -> str:
    """Return the RE2 pattern of a dialect's paths, without their queries."""
    return f".*/{ENDINGS[dialect]}/?"


def path_filter() -> Any:
    """Author the filter that notes the end of a completion's path, or the whole path of another request."""
    h, m = typed.header_to_metadata, typed.matcher
    pair = h.ConfigKeyValuePair(
        metadata_namespace=METADATA,
        key=KEY,
        regex_value_rewrite=m.RegexMatchAndSubstitute(
            pattern=m.RegexMatcher(regex=r"^[^?]*?/((?:chat/)?completions)/?(?:\?.*)?$"),
            substitution=r"\1",
        ),
    )
    rule = h.ConfigRule(header=":path", on_header_present=pair)
    config = h.Config(request_rules=[rule])
    name = "envoy.filters.http.header_to_metadata"
    return typed.hcm.HttpFilter(name=name, typed_config=pack(config))
