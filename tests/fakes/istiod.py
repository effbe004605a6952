"""istiod, played and real, as sidecars see it.

`FakeIstiod` is the xDS port that sidecars connect to: SotW, all routes of a port in one response, pushed after a
debounce; whoever does not accept a response gets no further one. `RealIstiod` runs the program that
`PILOT_DISCOVERY_BIN` names, without Kubernetes. `Sidecar` reads what either of them says.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import yaml
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from tests.fakes.envoy import eventually

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
TYPE = "type.googleapis.com/envoy.config."
ROUTE = TYPE + "route.v3.RouteConfiguration"
ENDPOINT = TYPE + "endpoint.v3.ClusterLoadAssignment"
CLUSTER = TYPE + "cluster.v3.Cluster"
BINARY = os.environ.get("PILOT_DISCOVERY_BIN", "")
WHY_SKIPPED = "PILOT_DISCOVERY_BIN names no istiod (docs/istio/README.md)"


def route_table(
    port: int, hosts: Mapping[str, Sequence[tuple[str, Mapping[str, int] | int]]]
) -> RouteConfiguration:
    """Make what istiod sends for a port: per host its routes, each clusters with weights, or a status."""
    table = RouteConfiguration(name=str(port))
    for host, routes in hosts.items():
        virtual = table.virtual_hosts.add(name=f"{host}:{port}", domains=[host, f"{host}:{port}"])
        for name, action in routes:
            route = virtual.routes.add(name=name)
            route.match.prefix = "/"
            if isinstance(action, int):
                route.direct_response.status = action
            elif len(action) == 1:
                route.route.cluster = next(iter(action))
            else:
                for cluster, weight in action.items():
                    weighted = route.route.weighted_clusters.clusters.add(name=cluster)
                    weighted.weight.value = weight
    return table


class FakeIstiod(grpc.GenericRpcHandler):
    """The port of istiod for sidecars."""

    def __init__(self, *, debounce_s: float = 0.05, token: str = "") -> None:
        self.port = 0
        self.requests: list[DiscoveryRequest] = []
        self.acks: list[str] = []
        self.streams = 0
        self.is_broken = False
        """Send bytes that are no route configuration."""
        self._token = token
        self._debounce_s = debounce_s
        self._tables: dict[str, RouteConfiguration] = {}
        self._pushes: list[asyncio.Event] = []
        self._version = 0

    def set(self, *tables: RouteConfiguration) -> None:
        """Let sidecars have these from now on."""
        self._tables = {each.name: each for each in tables}
        self._version += 1
        for push in self._pushes:
            push.set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._stream, DiscoveryRequest.FromString, DiscoveryResponse.SerializeToString
        )

    async def _stream(
        self, requests: AsyncIterator[DiscoveryRequest], context: Any
    ) -> AsyncIterator[DiscoveryResponse]:
        metadata = dict(context.invocation_metadata())
        if self._token and metadata.get("authorization") != f"Bearer {self._token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authentication failure")
        push, names, free = asyncio.Event(), [""], asyncio.Event()
        self._pushes.append(push)
        self.streams += 1

        async def read() -> None:
            async for request in requests:
                self.requests.append(request)
                if request.response_nonce:
                    self.acks.append(request.version_info)
                    free.set()
                elif request.type_url == ROUTE:
                    names[:] = request.resource_names
                    free.set()
                    push.set()

        reader = asyncio.create_task(read(), name="fake-istiod-reader")
        try:
            while True:
                await push.wait()
                await free.wait()
                await asyncio.sleep(self._debounce_s)
                push.clear()
                free.clear()
                yield self._response(names)
        finally:
            self.streams -= 1
            self._pushes.remove(push)
            reader.cancel()

    def _response(self, names: Sequence[str]) -> DiscoveryResponse:
        version = str(self._version)
        response = DiscoveryResponse(type_url=ROUTE, version_info=version, nonce=f"n{version}")
        for name in names:
            if self.is_broken:
                response.resources.add(type_url=ROUTE, value=b"\xff\xff")
            elif name in self._tables:
                response.resources.add().Pack(self._tables[name])
        return response


@asynccontextmanager
async def fake_istiod(istiod: FakeIstiod, *, port: int = 0) -> AsyncIterator[FakeIstiod]:
    """Serve on loopback for as long as the block lasts."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([istiod])
    istiod.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield istiod
    finally:
        await server.stop(0)


class Sidecar:
    """A client of istiod that asks as sidecars do, accepts everything and keeps what it got."""

    def __init__(self, channel: Any, *, node_id: str = "client-0") -> None:
        self._call = channel.stream_stream(
            METHOD, DiscoveryRequest.SerializeToString, DiscoveryResponse.FromString
        )()
        self._node_id = node_id
        self._names: dict[str, list[str]] = {}
        self._reader = asyncio.create_task(self._read(), name="sidecar")
        self.routes: dict[str, RouteConfiguration] = {}
        self.log: list[tuple[float, dict[str, int]]] = []
        """Every route response: when it came, and the weights of the watched host then."""
        self.watched: tuple[str, str] = ("", "")
        self._changed = asyncio.Event()

    async def ask(self, type_url: str, *names: str) -> None:
        """Subscribe."""
        request = DiscoveryRequest(type_url=type_url, resource_names=names)
        if not self._names:
            request.node.id = f"sidecar~127.0.0.9~{self._node_id}.ai~ai.svc.cluster.local"
            request.node.metadata.update(
                {"NAMESPACE": "ai", "LABELS": {}, "CLUSTER_ID": "Kubernetes"}
            )
        self._names[type_url] = list(names)
        await self._call.write(request)

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def weights(self, host: str, table: str) -> dict[str, int]:
        """Return the clusters of the first route of a host, with weights; empty while it has none."""
        for virtual in self.routes.get(table, RouteConfiguration()).virtual_hosts:
            if host in virtual.domains and virtual.routes:
                action = virtual.routes[0].route
                if action.HasField("weighted_clusters"):
                    clusters = action.weighted_clusters.clusters
                    return {each.name: each.weight.value for each in clusters}
                return {action.cluster: 100}
        return {}

    async def until(
        self, wanted: Mapping[str, int], *, timeout_s: float, since: float | None = None
    ) -> float:
        """Wait for the weights of the watched host; return the seconds that it took."""
        started = time.monotonic() if since is None else since
        deadline = time.monotonic() + timeout_s
        while self.weights(*self.watched) != dict(wanted):
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                have = self.weights(*self.watched)
                raise AssertionError(f"wanted {wanted}, has {have}") from None
        return time.monotonic() - started

    async def _read(self) -> None:
        async for response in self._call:
            if response.type_url == ROUTE:
                for each in response.resources:
                    table = RouteConfiguration.FromString(each.value)
                    self.routes[table.name] = table
                if self.watched[0]:
                    self.log.append((time.monotonic(), self.weights(*self.watched)))
            await self._call.write(
                DiscoveryRequest(
                    type_url=response.type_url,
                    version_info=response.version_info,
                    response_nonce=response.nonce,
                    resource_names=self._names.get(response.type_url, []),
                )
            )
            self._changed.set()


@asynccontextmanager
async def sidecar(
    port: int, *, host: str = "", table: str = "", node_id: str = "client-0"
) -> AsyncIterator[Sidecar]:
    """Be a sidecar that watches the routes of a host."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        made = Sidecar(channel, node_id=node_id)
        made.watched = (host, table)
        try:
            if table:
                await made.ask(ROUTE, table)
            yield made
        finally:
            await made.close()


class RealIstiod:
    """The real program. Make it with `real_istiod`."""

    def __init__(self, process: asyncio.subprocess.Process, ports: Sequence[int], log: Path):
        self.process = process
        self.http, self.xds, self.monitoring = ports[:3]
        self._log = log

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def is_ready(self) -> bool:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.http}/ready") as answer,
        ):
            return answer.status == 200

    async def until_ready(self, *, timeout_s: float = 15.0) -> None:
        async def probe() -> bool:
            if self.process.returncode is not None:
                raise RuntimeError(f"istiod ended: {self.process.returncode}\n{self.log()[-3000:]}")
            return await self.is_ready()

        await eventually(probe, what="istiod ready", timeout_s=timeout_s)

    async def page(self, path: str) -> str:
        """Return a page of the monitoring or the debug port."""
        port = self.monitoring if path.startswith("/metrics") else self.http
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return await answer.text()

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, all different: the program takes no 0 and tells none."""
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


@asynccontextmanager
async def real_istiod(
    directory: Path,
    *,
    sources: Sequence[str],
    wait_ready: bool = True,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[RealIstiod]:
    """Run istiod without Kubernetes for as long as the block lasts.

    Args:
        directory: For its mesh configuration and log; one per istiod.
        sources: Addresses of `meshConfig.configSources`.
        wait_ready: Wait until it is ready.
        environment: More variables.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ports = free_ports(5)
    http, xds, monitoring, https, ctrlz = ports
    mesh = {
        "configSources": [{"address": each} for each in sources],
        "defaultConfig": {"discoveryAddress": f"127.0.0.1:{xds}"},
        "rootNamespace": "istio-system",
        "trustDomain": "cluster.local",
        "enableAutoMtls": False,
        "defaultProviders": {},
        "enableTracing": False,
    }
    (directory / "mesh.yaml").write_text(yaml.safe_dump(mesh))
    alone = {
        "POD_NAME": "istiod-0",
        "POD_NAMESPACE": "istio-system",
        "CLUSTER_ID": "Kubernetes",
        "ENABLE_CA_SERVER": "false",
        "PILOT_CERT_PROVIDER": "none",
        "PILOT_ENABLE_METADATA_EXCHANGE": "false",
        "PILOT_ENABLE_ALPN_FILTER": "false",
        "PILOT_ENABLE_TELEMETRY_LABEL": "false",
        "PILOT_MAX_REQUESTS_PER_SECOND": "2000",
        "XDS_AUTH": "false",
        "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION": "false",
    }
    log = directory / "istiod.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(BINARY, "discovery", "--registries=", "--meshConfig", str(directory / "mesh.yaml")),
            *("--networksConfig", str(directory / "none"), "--secureGRPCAddr="),
            *("--httpAddr", f"127.0.0.1:{http}", "--httpsAddr", f"127.0.0.1:{https}"),
            *("--grpcAddr", f"127.0.0.1:{xds}", "--monitoringAddr", f"127.0.0.1:{monitoring}"),
            *("--ctrlz_address", "127.0.0.1", "--ctrlz_port", str(ctrlz)),
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **alone, **(environment or {})},
            cwd=directory,
        )
    istiod = RealIstiod(process, ports, log)
    try:
        if wait_ready:
            await istiod.until_ready()
        yield istiod
    finally:
        await istiod.stop()
