"""Streams that end in an error event after their 200: seen by a filter, told by the log.

vLLM whose engine process dies sends `data: {"error": ...}` and `data: [DONE]` on a stream that Envoy, the retry
policy and outlier detection take for a success. The filter reads the JSON of every event that passes, so it is
in the chain only where it is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xds_server.core.policy import EvidencePolicy, Policy
from xds_server.resources.capability import Capability
from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed

STREAM_ERROR = "stream_error"
"""Key of a request's metadata: an event of its stream had an `error`."""
MAX_EVENT_BYTES = 8192
"""A longer event is passed on unread; an error is short."""


def understood(policy: Policy, capability: Capability) -> Policy:
    """Return the policy without what proxies of this kind refuse: older ones do not know the filter."""
    if capability is Capability.COMPOSITE or not policy.evidence.stream_errors:
        return policy
    return replace(policy, evidence=replace(policy.evidence, stream_errors=False))


def stream_error_filters(policy: EvidencePolicy) -> list[Any]:
    """Return the filter as a list of one; none where the policy does not ask for it."""
    if not (policy.access_log and policy.stream_errors):
        return []
    j = typed.json_to_metadata
    rule = j.JsonToMetadataRule(
        selectors=[j.JsonToMetadataSelector(key="error")],
        on_present=j.JsonToMetadataKeyValuePair(
            metadata_namespace=METADATA,
            key=STREAM_ERROR,
            value=typed.protobuf.Value(bool_value=True),
        ),
    )
    parser = typed.json_content_parser.JsonContentParser(
        rules=[
            typed.json_content_parser.JsonContentParserRuleConfig(
                rule=rule, stop_processing_after_matches=1
            )
        ]
    )
    s = typed.sse_to_metadata
    config = s.SseToMetadata(
        response_rules=s.SseToMetadataProcessingRules(
            content_parser=typed.core.TypedExtensionConfig(
                name="envoy.content_parsers.json", typed_config=pack(parser)
            ),
            max_event_size=MAX_EVENT_BYTES,
        )
    )
    return [
        typed.hcm.HttpFilter(name="envoy.filters.http.sse_to_metadata", typed_config=pack(config))
    ]
