"""A real kube-apiserver with its etcd: the programs that `KUBE_APISERVER_BIN` and `ETCD_BIN` name."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.fakes.kube_api import TLS, kubeconfig_of
from tests.fakes.kube_schema import CRDS
from tests.fakes.real_istiod import free_ports
from tests.fakes.waiting import until

SERVER, ETCD = os.environ.get("KUBE_APISERVER_BIN", ""), os.environ.get("ETCD_BIN", "")
IS_THERE = bool(SERVER and ETCD)
WHY_SKIPPED = "KUBE_APISERVER_BIN and ETCD_BIN name no programs (docs/istio/kubernetes.md)"
NAMESPACES = ("ai", "gpu-xds")
ACCOUNT = "system:serviceaccount:gpu-xds:xds-server"
"""Who asks with the token `server-token`: what the roles of deploy/istio/kubernetes are bound to."""
USERS = {"admin-token": ("admin", "system:masters"), "server-token": (ACCOUNT, "")}


class RealKube:
    """The running programs, as an admin sees them. Make it with `real_kube`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.warnings: list[str] = []
        """What the server accepted and would rather not have: deprecated versions, pods that a policy doubts."""
        self._session = session

    def kubeconfig(self, path: Path, token: str = "admin-token") -> Path:
        """Write a kubeconfig for one of `USERS`."""
        return kubeconfig_of(self.url, path, token)

    async def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json"
    ) -> dict[str, Any]:
        """Ask as an admin; a refusal is an error with the server's words."""
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, self.url + path, json=body, headers=headers
        ) as answer:
            text = await answer.text()
            self.warnings += answer.headers.getall("Warning", [])
            # A group that is not there yet is plain text.
            assert answer.status < 300, f"{method} {path}: {text}"
            return dict(json.loads(text))

    async def apply(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Make or overwrite objects, as `kubectl apply --server-side --force-conflicts --validate=strict`."""
        for each in documents:
            group, _, version = each["apiVersion"].rpartition("/")
            base = f"/apis/{group}/{version}" if group else f"/api/{version}"
            namespace = each["metadata"].get("namespace")
            scope = f"/namespaces/{namespace}" if namespace else ""
            plural = plural_of(each["kind"])
            path = f"{base}{scope}/{plural}/{each['metadata']['name']}"
            query = "?fieldManager=kubectl-edit&force=true&fieldValidation=Strict"
            await self.ask("PATCH", path + query, dict(each), kind="application/apply-patch+yaml")

    async def token_of(self, namespace: str, account: str) -> str:
        """Have a token made for a service account, as the kubelet does for a pod."""
        made = await self.ask(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        return str(made["status"]["token"])

    async def weights(self, name: str, route: int = 0) -> dict[str, int]:
        """Return the weights of a VirtualService in `ai` by service; empty where there is none."""
        path = f"/apis/networking.istio.io/v1/namespaces/ai/virtualservices/{name}"
        try:
            found = await self.ask("GET", path)
        except AssertionError:
            return {}
        return {
            each["destination"]["host"].partition(".")[0]: each.get("weight", 0)
            for each in found["spec"]["http"][route]["route"]
        }


def plural_of(kind: str) -> str:
    """Return a kind as URLs name it."""
    name = kind.lower()
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


@asynccontextmanager
async def real_kube(
    directory: Path, *, crds: Sequence[Path] = (CRDS,), options: Sequence[str] = ()
) -> AsyncIterator[RealKube]:
    """Run etcd and the server for as long as the block lasts, with Istio's kinds and two namespaces.

    Args:
        directory: For their state and logs.
        crds: Files with the kinds; the reduced ones of our own unless others are given.
        options: More of the API server's own.
    """
    client, peer, port = free_ports(3)
    etcd = f"http://127.0.0.1:{client}"
    tokens = directory / "tokens.csv"
    tokens.write_text(
        "".join(f'{token},{name},{name},"{group}"\n' for token, (name, group) in USERS.items())
    )
    key = TLS / "key.pem"
    commands = [
        [
            *(ETCD, "--data-dir", str(directory / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--unsafe-no-fsync",),
        ],
        [
            *(SERVER, "--etcd-servers", etcd, "--secure-port", str(port)),
            *("--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"),
            *("--endpoint-reconciler-type", "none", "--cert-dir", str(directory / "certs")),
            *("--tls-cert-file", str(TLS / "cert.pem"), "--tls-private-key-file", str(key)),
            *("--service-account-issuer", "https://localhost", "--service-account-key-file"),
            *(str(TLS / "cert.pem"), "--service-account-signing-key-file", str(key)),
            *("--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC"),
            *("--token-auth-file", str(tokens), "--disable-admission-plugins", "ServiceAccount"),
            *options,
        ],
    ]
    processes: list[asyncio.subprocess.Process] = []
    log = (directory / "kube.log").open("wb")
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    headers = {"Authorization": "Bearer admin-token"}
    connector = aiohttp.TCPConnector(ssl=context)
    try:
        for each in commands:
            running = await asyncio.create_subprocess_exec(
                *each, stdout=log, stderr=log, cwd=directory
            )
            processes.append(running)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            kube = RealKube(f"https://localhost:{port}", session)
            await _begin(kube, processes, directory / "kube.log", crds)
            yield kube
    finally:
        for process in reversed(processes):
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 15)
                except TimeoutError:
                    process.kill()
                    await process.wait()
        log.close()


async def _begin(
    kube: RealKube,
    processes: list[asyncio.subprocess.Process],
    log: Path,
    crds: Sequence[Path],
) -> None:
    async def is_ready() -> bool:
        ended = [each.returncode for each in processes if each.returncode is not None]
        assert not ended, log.read_text(errors="replace")[-3000:]
        try:
            await kube.ask(
                "GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:discovery"
            )
        except (aiohttp.ClientError, AssertionError):
            return False
        return True

    await until(is_ready, "the API server", 120)
    for name in NAMESPACES:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await kube.ask("POST", "/api/v1/namespaces", body)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in crds:
        for crd in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
            if crd:
                await kube.ask("POST", path, crd)

    async def has_kinds() -> bool:
        conditions = [
            each.get("status", {}).get("conditions") or ()
            for each in (await kube.ask("GET", path))["items"]
        ]
        served = {"type": "Established", "status": "True"}
        return all(any(served.items() <= each.items() for each in listed) for listed in conditions)

    await until(has_kinds, "Istio's kinds", 60)
