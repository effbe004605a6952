"""What istiod asks for, and which of it we have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MESH_CONFIG = "MeshConfig"
"""Asked for first, with the node; wants no answer and gets no ACK."""


class Kind(StrEnum):
    """Kinds of objects that we publish, in the order in which they are to arrive."""

    SERVICE_ENTRY = "ServiceEntry"
    DESTINATION_RULE = "DestinationRule"
    VIRTUAL_SERVICE = "VirtualService"


KNOWN_EMPTY = frozenset(
    {
        "AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication", "Gateway", "Sidecar",
        "WorkloadEntry", "WorkloadGroup", "EnvoyFilter", "ProxyConfig", "Telemetry", "WasmPlugin",
        "TrafficExtension",
    }
)  # fmt: skip
"""The other kinds that istiod is known to ask for (pkg/config/schema, 1.14 to 1.32). It waits for an answer
to each of them, an empty one too, before it is ready."""


class NotIstioError(ValueError):
    """A type that no istiod asks for; the text says who probably does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A type as it is asked for, like `networking.istio.io/v1alpha3/VirtualService`."""

    group: str
    version: str
    name: str

    @property
    def kind(self) -> Kind | None:
        """What we publish of it, whatever its version: v1alpha3 until 1.23, v1 since 1.24; None = nothing."""
        if self.group != "networking.istio.io":
            return None
        return next((each for each in Kind if each == self.name), None)

    @property
    def is_known(self) -> bool:
        """Whether istiods are known to ask for it."""
        return self.kind is not None or self.name in KNOWN_EMPTY


def parse_type(type_url: str) -> Asked:
    """Read the type of a request.

    Raises:
        NotIstioError: It is not `group/version/Kind`.
    """
    parts = type_url.split("/")
    if len(parts) == 3 and all(parts):
        return Asked(*parts)
    if type_url.startswith("type.googleapis.com/envoy."):
        # An empty answer would take all clusters from it.
        raise NotIstioError(
            f"{type_url}: this port is for istiod (MCP over xDS); proxies use the xDS port"
        )
    raise NotIstioError(f"{type_url!r}: expected group/version/Kind, as istiod asks")
