"""An API server of Kubernetes with nothing in it: every list is empty, every watch silent, every write accepted.

A present istiod does not start without one, though all of its configuration comes from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

_VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}


class EmptyKube:
    """The server. Make it with `empty_kube`."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: set[str] = set()
        """Paths that were read."""
        self.tokens: dict[str, tuple[str, str]] = {}
        """Namespace and service account of tokens that are good."""
        self.is_over = asyncio.Event()

    def kubeconfig(self, directory: Path) -> Path:
        """Write the file with which clients find it."""
        path = directory / "kubeconfig"
        cluster = {"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "k", "context": {"cluster": "k", "user": "k"}}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "k",
            "clusters": [cluster], "contexts": [context], "users": [{"name": "k", "user": {}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(document))
        return path

    async def answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        self.asked.add(request.path)
        if request.method in ("POST", "PUT", "PATCH"):
            document = await request.json()
            if parts[-1] == "tokenreviews":
                self._review(document)
            return web.json_response(document, status=201)
        if request.path == "/version":
            return web.json_response(_VERSION)
        if parts == ["api"]:
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if parts == ["apis"]:
            return web.json_response({"kind": "APIGroupList", "groups": []})
        if (parts[0], len(parts)) in (("api", 2), ("apis", 3)):
            group = "/".join(parts[1:])
            return web.json_response(
                {"kind": "APIResourceList", "groupVersion": group, "resources": []}
            )
        if request.query.get("watch") in ("true", "1"):
            return await self._silence(request, parts)
        version, names = _place(parts)
        if len(names) in (1, 3):
            kind = f"{_kind(names[-1])}List"
            empty = {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1"}}
            return web.json_response({**empty, "items": []})
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
        return web.json_response({**missing, "reason": "NotFound"}, status=404)

    def _review(self, review: dict[str, Any]) -> None:
        """Say whose token it is."""
        account = self.tokens.get(review["spec"]["token"])
        if account is None:
            review["status"] = {"authenticated": False}
            return
        namespace, name = account
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        username = f"system:serviceaccount:{namespace}:{name}"
        user = {"username": username, "uid": "1", "groups": groups}
        review["status"] = {"authenticated": True, "user": user}

    async def _silence(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        """Answer a watch: the end of what there is, if that is asked for, and nothing more."""
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        if request.query.get("sendInitialEvents") == "true":
            version, names = _place(parts)
            annotations = {"k8s.io/initial-events-end": "true"}
            metadata: dict[str, Any] = {"resourceVersion": "1", "annotations": annotations}
            bookmark = {"kind": _kind(names[-1]), "apiVersion": version, "metadata": metadata}
            event = {"type": "BOOKMARK", "object": bookmark}
            await response.write(json.dumps(event).encode() + b"\n")
        await self.is_over.wait()
        return response


def _place(parts: list[str]) -> tuple[str, list[str]]:
    """Split a path into the group's version and what follows, e.g. `[namespaces, ai, services]`."""
    if parts[0] == "api":
        return parts[1], parts[2:]
    return "/".join(parts[1:3]), parts[3:]


def _kind(plural: str) -> str:
    known = {
        "namespaces": "Namespace",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "services": "Service",
        "endpointslices": "EndpointSlice",
        "pods": "Pod",
        "nodes": "Node",
        "serviceaccounts": "ServiceAccount",
        "customresourcedefinitions": "CustomResourceDefinition",
        "ingresses": "Ingress",
        "ingressclasses": "IngressClass",
        "leases": "Lease",
        "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
        "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
    }
    return known.get(plural, plural.removesuffix("s").capitalize())


@asynccontextmanager
async def empty_kube() -> AsyncIterator[EmptyKube]:
    """Serve on a free port for as long as the block lasts."""
    kube = EmptyKube()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", kube.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    kube.port = site._server.sockets[0].getsockname()[1]
    try:
        yield kube
    finally:
        kube.is_over.set()
        await runner.cleanup()
