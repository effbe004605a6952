"""How istiod names the clusters of a sidecar, and how ours beside them are named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class MeshCluster:
    """One host, port and subset of the mesh, as a sidecar calls it."""

    host: str
    """As in a VirtualService's destination, e.g. `vllm-70b.ai.svc.cluster.local`."""
    port: int
    """The service's port, not that of its endpoints."""
    subset: str = ""
    """A subset of the host's DestinationRule; empty = all of the host."""

    @property
    def name(self) -> str:
        """Name of istiod's cluster, and of its endpoints: `outbound|8000|v1|HOST`."""
        return self._in("outbound")

    @property
    def fleet(self) -> str:
        """Name of the cluster with our endpoints."""
        return self._in("fleet")

    @property
    def own(self) -> str:
        """Name that istiod's own cluster gets, to be what is fallen back on."""
        return self._in("mesh")

    @property
    def sni(self) -> str:
        """The server name that sidecars expect for it: `outbound_.8000_.v1_.HOST`."""
        return f"outbound_.{self.port}_.{self.subset}_.{self.host}"

    def _in(self, direction: str) -> str:
        return f"{direction}|{self.port}|{self.subset}|{self.host}"
