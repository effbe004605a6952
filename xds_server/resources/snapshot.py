"""The resources of one group of proxies at one moment: names, bytes, versions.

Immutable. Versions are content hashes, so equal content has an equal version and causes no push, also
after a restart of the control plane (R6, R7 of the protocol rules in docs/xds.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
ROUTE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
EXTENSION_CONFIG = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105
RUNTIME = "type.googleapis.com/envoy.service.runtime.v3.Runtime"

PUSH_ORDER = (CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET, RUNTIME, EXTENSION_CONFIG)
"""Make before break: a resource is sent after what it names (R13)."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One named resource, serialized once for every stream that will get it."""

    name: str
    version: str
    """Hash of `body`."""
    body: bytes
    """The serialized resource message (without an enclosing Any)."""
    needs: frozenset[str] = frozenset()
    """Names of clusters that must be known to the proxy first (routes only)."""

    @classmethod
    def of(cls, name: str, body: bytes, needs: Iterable[str] = ()) -> Resource:
        """Make a resource whose version follows from its content."""
        return cls(name, _digest([body]), body, frozenset(needs))


@dataclass(frozen=True)
class TypeSnapshot:
    """All resources of one type."""

    type_url: str
    resources: Mapping[str, Resource]

    @cached_property
    def version(self) -> str:
        """Hash over names and versions, whatever their order."""
        pairs = sorted((name, each.version) for name, each in self.resources.items())
        return _digest(f"{name}\0{version}\0".encode() for name, version in pairs)


@dataclass(frozen=True)
class Snapshot:
    """Everything a group of proxies is served, by type URL. A missing type is an empty one."""

    types: Mapping[str, TypeSnapshot]
    limiters: Callable[[float], TypeSnapshot] | None = field(default=None, compare=False)
    """The limiters of a proxy that may admit this part of every limit; None without limits. Among `types` are
    those of a proxy that is alone."""

    def for_part(self, part: float) -> Snapshot:
        """Return what a proxy is served that may admit this part, above 0, of every limit."""
        if self.limiters is None:
            return self
        return replace(self, types={**self.types, EXTENSION_CONFIG: self.limiters(part)})

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """Version of each type that has a resource, found once for all streams."""
        return {name: each.version for name, each in self.types.items() if each.resources}

    def is_same(self, other: Snapshot) -> bool:
        """Whether every proxy is served the same by both.

        Limiters that are equal for a proxy that is alone may differ for others (`largest_request_tokens` shows in
        small parts only), so other limiters are taken as different.
        """
        return self.versions == other.versions and self.limiters == other.limiters

    def of_type(self, type_url: str) -> TypeSnapshot:
        """Return the resources of a type, which may be none."""
        return self.types.get(type_url) or TypeSnapshot(type_url, {})


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
