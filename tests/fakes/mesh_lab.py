"""A mesh with a real istiod: our config source, its services in a file, and who watches what sidecars get.

async with mesh_lab(tmp_path) as lab:
    lab.plan(90, 10)
    await lab.istiod.until_ready()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from tests.fakes.empty_kube import empty_kube
from tests.fakes.istiod_port import sidecar
from tests.fakes.plans import a_plan
from tests.fakes.real_istiod import RealIstiod, free_ports, real_istiod
from xds_server.config.config import Config
from xds_server.config.istio_schema import ConfigSourceSection
from xds_server.config.load import load_text
from xds_server.core.plan import Plan
from xds_server.istio.mcp.source import ConfigSource
from xds_server.istio.mesh import MeshNow
from xds_server.istio.way import Around
from xds_server.observability.history import History
from xds_server.observability.metrics import Tally
from xds_server.store.row import Row

HOST = "llm.ai.svc.cluster.local"
BIG, SMALL, BUSY = (f"{name}.ai.svc.cluster.local" for name in ("vllm-70b", "vllm-8b", "busy"))
PORT = 8000
TABLE = str(PORT)
MESH_FILE = Path(__file__).parents[1] / "istio/mesh.yaml"


def cluster(host: str) -> str:
    """Name istiod's cluster of a host."""
    return f"outbound|{8080 if host == BUSY else PORT}||{host}"


def split(big: int, small: int, busy: int = 0) -> dict[str, int]:
    """Return what sidecars get for a split in percent."""
    parts = {cluster(BIG): big, cluster(SMALL): small, cluster(BUSY): busy}
    left = {name: weight for name, weight in parts.items() if weight}
    return dict.fromkeys(left, 100) if len(left) == 1 else left


def service(host: str, address: str, port: int, target: int) -> dict[str, Any]:
    """Return the ServiceEntry that stands for a service of the mesh."""
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": {"name": host.partition(".")[0], "namespace": "ai"},
        "spec": {
            "hosts": [host],
            "addresses": [address],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "ports": [{"number": port, "name": "http", "protocol": "HTTP"}],
            "endpoints": [{"address": "127.0.0.1", "ports": {"http": target}}],
        },
    }


def written(folder: Path, *documents: Any) -> None:
    """Write objects into a folder that istiod watches."""
    folder.mkdir(exist_ok=True)
    fresh = folder.parent / f"{folder.name}.new"
    fresh.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    fresh.rename(folder / "all.yaml")


SERVICES = (
    service(HOST, "240.0.0.1", PORT, 18999),
    service(BIG, "240.0.0.2", PORT, 18998),
    service(SMALL, "240.0.0.3", PORT, 18997),
    service(BUSY, "240.0.0.4", 8080, 18996),
)


class Source:
    """Our config source without the rest of the process: plans are made up."""

    def __init__(self, config: Config, port: int) -> None:
        self.config = config
        self.rows: list[Row] = []
        self.tally = Tally()
        self._listeners: list[Any] = []
        self.loop: Any = SimpleNamespace(
            is_warm=True,
            subscribe=self._listeners.append,
            fleet=SimpleNamespace(topology=config.topology, policy=config.policy),
        )
        history = History(self.rows.append, topology=lambda: config.topology)
        self.around = Around(
            config=lambda: config,
            loop=self.loop,
            tally=self.tally,
            history=history,
            mesh=MeshNow(lambda: config.istio, lambda: self.loop.fleet.topology),
        )
        self.source = ConfigSource(
            self.around, ConfigSourceSection(listen=f"127.0.0.1:{port}", changes_per_second=4)
        )

    def plan(self, big: int, small: int, busy: int = 0) -> Plan:
        """Decide on a split in percent."""
        plan = a_plan(self.config.topology, (big * 10, small * 10, busy * 10))
        for listener in self._listeners:
            listener(plan)
        return plan

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.source.run(), name="config-source")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class MeshLab:
    """Make it with `mesh_lab`."""

    def __init__(self, directory: Path, config: Config, port: int) -> None:
        self.directory = directory
        self.config = config
        self.port = port
        self.ours = Source(config, port)
        self.istiod: RealIstiod
        self.kubeconfig: Path
        self._ours: AsyncExitStack | None = None

    @property
    def sources(self) -> list[str]:
        return [f"xds://127.0.0.1:{self.port}", f"fs://{self.directory / 'services'}"]

    def plan(self, big: int, small: int, busy: int = 0) -> None:
        self.ours.plan(big, small, busy)

    def apply(self, *documents: Any) -> None:
        """Write what the admin of the mesh has in its repository."""
        written(self.directory / "services", *documents)

    async def serve(self) -> None:
        """Start our side, as a new process would: nothing is known but the plans it is told."""
        self.ours = Source(self.config, self.port)
        self._ours = AsyncExitStack()
        await self._ours.enter_async_context(self.ours.serving())

    async def kill(self) -> None:
        """Be gone."""
        if self._ours is not None:
            await self._ours.aclose()
            self._ours = None

    def watching(self, node_id: str = "client-0") -> Any:
        """Be a sidecar that watches the model's host."""
        return sidecar(self.istiod.xds, host=HOST, table=TABLE, node_id=node_id)


@asynccontextmanager
async def mesh_lab(
    directory: Path,
    *,
    documents: Sequence[Any] = SERVICES,
    served: bool = True,
    wait_ready: bool = True,
    first: tuple[int, int] | None = (90, 10),
    config: str | None = None,
    environment: Mapping[str, str] | None = None,
    tls: Path | None = None,
    tokens: Mapping[str, tuple[str, str]] | None = None,
) -> AsyncIterator[MeshLab]:
    """Run istiod on our config source for as long as the block lasts.

    Args:
        directory: An empty folder.
        documents: What else the mesh has.
        served: Our side is there before istiod.
        wait_ready: Wait until istiod is ready.
        first: The first split; None = nothing is decided yet.
        config: Text of our configuration; None = that of tests/istio/mesh.yaml.
        environment: More variables of istiod's.
        tls: As for `real_istiod`.
        tokens: Namespace and service account of tokens that the API server knows.
    """
    directory.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(empty_kube())
        kube.tokens.update(tokens or {})
        (port,) = free_ports(1)
        lab = MeshLab(directory, load_text(config or MESH_FILE.read_text()), port)
        lab.kubeconfig = kube.kubeconfig(directory)
        lab.apply(*documents)
        stack.push_async_callback(lab.kill)
        if served:
            await lab.serve()
            if first is not None:
                lab.plan(*first)
        lab.istiod = await stack.enter_async_context(
            real_istiod(
                directory / "istiod",
                sources=lab.sources,
                kubeconfig=lab.kubeconfig,
                wait_ready=wait_ready,
                environment=environment,
                tls=tls,
            )
        )
        yield lab
