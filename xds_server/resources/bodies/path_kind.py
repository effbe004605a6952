"""What a path asks for and when an engine wants to be asked again, in the request's metadata.

For the filter that answers in place of an engine: it sees neither the request nor, where it adds headers, the
engine's answer.
"""

from __future__ import annotations

from typing import Any

from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed
from xds_server.resources.static.answer import Dialect

KEY = "path"
RETRY_AFTER = "retry_after"
"""What the engine's answer, or the proxy's, says in the header `retry-after`."""
ENDINGS = {Dialect.CHAT: "chat/completions", Dialect.TEXT: "completions"}
"""What paths end in. Chat comes first: its paths end like the others."""


def path_pattern(dialect: Dialect) -> str:
    """Return the RE2 pattern of a dialect's paths, without their queries."""
    return f".*/{ENDINGS[dialect]}/?"


def notes_filter() -> Any:
    """Author the filter that notes both: of a path the end of a completion's, or the whole path of another request.

    On the way back filters come in the opposite order: it stands behind the one that needs its notes.
    """
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
    again = h.ConfigRule(
        header="retry-after",
        on_header_present=h.ConfigKeyValuePair(metadata_namespace=METADATA, key=RETRY_AFTER),
    )
    config = h.Config(request_rules=[rule], response_rules=[again])
    name = "envoy.filters.http.header_to_metadata"
    return typed.hcm.HttpFilter(name=name, typed_config=pack(config))
