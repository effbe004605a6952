"""A real istiod without Kubernetes: the program that `PILOT_DISCOVERY_BIN` names."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.fakes.envoy import eventually

BINARY = os.environ.get("PILOT_DISCOVERY_BIN", "")
WHY_SKIPPED = "PILOT_DISCOVERY_BIN names no istiod (docs/istio/tested.md)"


class RealIstiod:
    """The real program. Make it with `real_istiod`."""

    def __init__(self, process: asyncio.subprocess.Process, ports: Sequence[int], log: Path):
        self.process = process
        self.http, self.xds, self.monitoring, self.secure = ports
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
    sources: Sequence[str | Mapping[str, Any]],
    kubeconfig: Path,
    wait_ready: bool = True,
    environment: Mapping[str, str] | None = None,
    ports: Sequence[int] | None = None,
    tls: Path | None = None,
) -> AsyncIterator[RealIstiod]:
    """Run istiod without Kubernetes for as long as the block lasts.

    Args:
        directory: For its mesh configuration and log; one per istiod.
        sources: Of `meshConfig.configSources`: addresses, or with TLS settings.
        kubeconfig: Of an API server, which may be empty.
        wait_ready: Wait until it is ready.
        environment: More variables.
        ports: Five free ones: for readiness, sidecars, metrics, webhooks and introspection.
        tls: A folder with cert.pem and key.pem: sidecars are served over TLS too, and asked who they are there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ports = ports or free_ports(5)
    http, xds, monitoring, https, ctrlz = ports
    (secure,) = free_ports(1)
    secured = ["--secureGRPCAddr="]
    if tls is not None:
        secured = [f"--secureGRPCAddr=127.0.0.1:{secure}"]
        secured += [f"--tlsCertFile={tls / 'cert.pem'}", f"--tlsKeyFile={tls / 'key.pem'}"]
        # It watches its files, and refuses to watch one for two purposes.
        root = directory / "root.pem"
        root.write_bytes((tls / "cert.pem").read_bytes())
        secured += [f"--caCertFile={root}"]
    mesh = {
        "configSources": [
            {"address": each} if isinstance(each, str) else dict(each) for each in sources
        ],
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
            *(BINARY, "discovery", "--registries=Kubernetes", "--kubeconfig", str(kubeconfig)),
            *("--meshConfig", str(directory / "mesh.yaml")),
            *("--networksConfig", str(directory / "none"), *secured),
            *("--httpAddr", f"127.0.0.1:{http}", "--httpsAddr", f"127.0.0.1:{https}"),
            *("--grpcAddr", f"127.0.0.1:{xds}", "--monitoringAddr", f"127.0.0.1:{monitoring}"),
            *("--ctrlz_address", "127.0.0.1", "--ctrlz_port", str(ctrlz)),
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **alone, **(environment or {})},
            cwd=directory,
        )
    istiod = RealIstiod(process, [*ports[:3], secure], log)
    try:
        if wait_ready:
            await istiod.until_ready()
        yield istiod
    finally:
        await istiod.stop()
