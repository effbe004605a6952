"""The one module that knows Envoy's messages, in both libraries.

*Typed*: envoy-data-plane's dataclasses, which check every field and know messages that xds-protos
lacks (the composite cluster). They take about half a millisecond per message, so they author the shapes.
*upb*: xds-protos' generated classes, a hundred times faster. They are parsed from the authored bytes;
names, weights and health are set in place, and fields that they do not know survive as they came.

`typed` imports nothing until a message is asked for: envoy-data-plane takes a second to load.
"""

from __future__ import annotations

import importlib
import warnings
from datetime import timedelta
from functools import cached_property
from types import ModuleType
from typing import Any, TypeVar

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_components_pb2 import (
    Route,
    RouteAction,
    VirtualHost,
    WeightedCluster,
)
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2 import LocalRateLimit
from envoy.type.v3.token_bucket_pb2 import TokenBucket
from google.protobuf.message import Message

__all__ = [
    "UINT32_MAX",
    "Cluster",
    "ClusterLoadAssignment",
    "LbEndpoint",
    "Listener",
    "LocalRateLimit",
    "Message",
    "Route",
    "RouteAction",
    "RouteConfiguration",
    "TokenBucket",
    "TypedExtensionConfig",
    "VirtualHost",
    "WeightedCluster",
    "duration",
    "pack",
    "parse",
    "parse_any",
    "serialize",
    "to_upb",
    "typed",
]

M = TypeVar("M", bound=Message)

UINT32_MAX = 2**32 - 1


class _Typed:
    """envoy-data-plane's modules by a short name, each imported when first used."""

    _MODULES = {  # noqa: RUF012 - never written
        "accesslog": "envoy.config.accesslog.v3",
        "aggregate": "envoy.extensions.clusters.aggregate.v3",
        "buffer": "envoy.extensions.filters.http.buffer.v3",
        "cel_filter": "envoy.extensions.access_loggers.filters.cel.v3",
        "cluster": "envoy.config.cluster.v3",
        "composite": "envoy.extensions.clusters.composite.v3",
        "core": "envoy.config.core.v3",
        "custom_response": "envoy.extensions.filters.http.custom_response.v3",
        "discovery": "envoy.service.discovery.v3",
        "endpoint": "envoy.config.endpoint.v3",
        "grpc_access_log": "envoy.extensions.access_loggers.grpc.v3",
        "hcm": "envoy.extensions.filters.network.http_connection_manager.v3",
        "header_mutation": "envoy.extensions.filters.http.header_mutation.v3",
        "header_to_metadata": "envoy.extensions.filters.http.header_to_metadata.v3",
        "http_options": "envoy.extensions.upstreams.http.v3",
        "json_content_parser": "envoy.extensions.content_parsers.json.v3",
        "json_to_metadata": "envoy.extensions.filters.http.json_to_metadata.v3",
        "listener": "envoy.config.listener.v3",
        "local_ratelimit": "envoy.extensions.filters.http.local_ratelimit.v3",
        "lua": "envoy.extensions.filters.http.lua.v3",
        "local_response": "envoy.extensions.http.custom_response.local_response_policy.v3",
        "matcher": "envoy.type.matcher.v3",
        "matcher_config": "envoy.config.common.matcher.v3",
        "metadata_matcher": "envoy.extensions.matching.input_matchers.metadata.v3",
        "metadata": "envoy.type.metadata.v3",
        "mutation_rules": "envoy.config.common.mutation_rules.v3",
        "network_inputs": "envoy.extensions.matching.common_inputs.network.v3",
        "previous_hosts": "envoy.extensions.retry.host.previous_hosts.v3",
        "previous_priorities": "envoy.extensions.retry.priority.previous_priorities.v3",
        "protobuf": "google.protobuf",
        "route": "envoy.config.route.v3",
        "router": "envoy.extensions.filters.http.router.v3",
        "sse_to_metadata": "envoy.extensions.filters.http.sse_to_metadata.v3",
        "type": "envoy.type.v3",
        "upstream_codec": "envoy.extensions.filters.http.upstream_codec.v3",
        "xds_matcher": "xds.type.matcher.v3",
        "xds_core": "xds.core.v3",
    }

    def __getattr__(self, name: str) -> ModuleType:
        path = self._MODULES.get(name)
        if path is None:
            raise AttributeError(name)
        with warnings.catch_warnings():
            # Its generated validators use a form that pydantic 2.12 deprecates; nothing of ours.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(f"envoy_data_plane.{path}")
        setattr(self, name, module)
        return module

    @cached_property
    def Message(self) -> Any:  # noqa: N802 - it is a class
        """The base class of every typed message."""
        return importlib.import_module("betterproto2").Message

    def load(self) -> Any:
        """Import every module that is authored with, and return the registry of their messages."""
        for name in self._MODULES:
            getattr(self, name)
        return importlib.import_module("envoy_data_plane.message_pool").default_message_pool


typed: Any = _Typed()
"""Entry to the typed messages: `typed.cluster.Cluster(...)`."""


def to_upb(kind: type[M], message: Any) -> M:
    """Turn a typed message into its upb twin; nothing is lost, known there or not."""
    return kind.FromString(bytes(message))


def serialize(message: Message) -> bytes:
    """Serialize with map keys in order: equal content has equal bytes."""
    return message.SerializeToString(deterministic=True)


def pack(message: Any) -> Any:
    """Wrap a typed message in an Any."""
    return typed.protobuf.Any.pack(message)


def parse(type_url: str, body: bytes) -> Any:
    """Decode bytes into a typed message, or None if no message of that name is authored here.

    Slow (about half a millisecond per message): for people's eyes, never on the way to a proxy.
    """
    kind = typed.load().url_to_type.get(type_url)
    return None if kind is None else kind.parse(body)


def parse_any(value: Any) -> Any:
    """Decode what a typed Any holds, or None if it is of an unknown type."""
    return parse(value.type_url, value.value)


def duration(seconds: float) -> timedelta:
    """Return seconds as the typed messages want them."""
    return timedelta(seconds=seconds)
