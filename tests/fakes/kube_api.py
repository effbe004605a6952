"""A Kubernetes API server for tests, over real HTTPS: tokens, roles, versions, schemas, patches, watches.

It has the kinds of `tests/data/istio/crds.yaml` and Leases, and enforces what a real one does where the
product could get it wrong. `Api.log` holds every request.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.fakes.kube_store import Document, RefusedError, Store, Target

TLS = Path(__file__).resolve().parents[1] / "data/tls"
ISTIO = "networking.istio.io"
ALL = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a role allows; `*` is everything."""

    verbs: tuple[str, ...]
    group: str = ALL
    plural: str = ALL
    namespace: str = ALL
    names: tuple[str, ...] = ()


EVERYTHING = (Rule((ALL,)),)


@dataclass(slots=True)
class Request:
    """One request as it came."""

    at: float
    user: str
    verb: str
    target: Target
    query: dict[str, str]
    body: Any
    status: int = 0

    @property
    def is_write(self) -> bool:
        return self.verb in {"create", "update", "patch"} and "dryRun" not in self.query


@dataclass
class Fault:
    """What goes wrong with requests of a verb and a plural, so many times."""

    verb: str
    plural: str
    times: float
    status: int = 0
    """0 = no answer at all."""
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "made for the test"


class Api:
    """One running server. Make it with `running_api`."""

    def __init__(self) -> None:
        self.store = Store()
        self.users: dict[str, str] = {"admin-token": "admin"}
        """Token -> name."""
        self.roles: dict[str, Iterable[Rule]] = {"admin": EVERYTHING}
        self.log: list[Request] = []
        self.faults: list[Fault] = []
        self.port = 0
        self.versions = ["v1", "v1beta1"]
        self.before_write: Callable[[Target], Awaitable[None]] | None = None
        """What somebody else does just before a write is carried out."""
        self.webhook: Callable[[Document], None] | None = None
        """Changes what is written, as a mutating webhook does."""
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def add_user(self, name: str, *rules: Rule) -> str:
        """Make an account and return its token."""
        token = f"token-of-{name}"
        self.users[token] = name
        self.roles[name] = rules
        return token

    def kubeconfig(self, path: Path, token: str = "admin-token") -> Path:
        """Write a kubeconfig for an account."""
        return kubeconfig_of(self.url, path, token)

    def writes(self, plural: str = "", name: str = "") -> list[Request]:
        """Return the writes that were accepted."""
        return [
            each
            for each in self.log
            if each.is_write
            and 200 <= each.status < 300
            and plural in {"", each.target.plural}
            and name in {"", each.target.name}
        ]

    def asked(self, verb: str, plural: str) -> list[Request]:
        return [each for each in self.log if (each.verb, each.target.plural) == (verb, plural)]

    def object(self, plural: str, namespace: str, name: str, group: str = ISTIO) -> Document:
        return self.store.objects[group, plural, namespace, name]

    async def put(self, document: Document, *, manager: str = "kubectl-edit") -> Document:
        """Write an object as somebody else does: over whatever is there."""
        group, _, version = document["apiVersion"].partition("/")
        plural = next(
            key[2]
            for key, (kind, _) in self.store.kinds.items()
            if (key[0], key[1], kind) == (group, version, document["kind"])
        )
        metadata = document["metadata"]
        target = Target(group, version, plural, metadata["namespace"], metadata["name"])
        if target.key in self.store.objects:
            body = {**document, "metadata": dict(metadata)}
            body["metadata"]["resourceVersion"] = self.store.get(target)["metadata"][
                "resourceVersion"
            ]
            return await self.store.replace(target, body, manager=manager, dry=False)
        return await self.store.create(target, document, manager=manager, dry=False)

    def fail(self, verb: str, plural: str, status: int, times: float = 1, **more: Any) -> None:
        self.faults.append(Fault(verb=verb, plural=plural, status=status, times=times, **more))

    async def start(self) -> None:
        """Listen, on the same port as before if it did."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
        app = web.Application()
        app.router.add_get("/apis/{group}", self._group)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        base = "/apis/{group}/{version}/namespaces/{namespace}/{plural}"
        app.router.add_route("*", base, self._serve)
        app.router.add_route("*", base + "/{name}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening, ssl_context=context).start()

    async def stop(self) -> None:
        """Drop every connection and listen no more."""
        for task in self._watches:
            task.cancel()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    # Answers.

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        found = request.match_info
        target = Target(
            found["group"], found["version"], found["plural"], found["namespace"],
            found.get("name", ""),
        )  # fmt: skip
        query = dict(request.query)
        verb = _verb(request, target)
        if verb == "watch":
            target.name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        body = await request.json() if request.can_read_body else None
        entry = Request(time.monotonic(), "", verb, target, query, body)
        self.log.append(entry)
        try:
            entry.user = self._user(request)
            await self._go_wrong(verb, target)
            if self.before_write is not None and entry.is_write:
                hook, self.before_write = self.before_write, None
                await hook(target)
            if self.webhook is not None and entry.is_write and verb != "patch":
                self.webhook(body)
            self._allow(entry.user, verb, target)
            if (target.group, target.version, target.plural) not in self.store.kinds:
                raise RefusedError(
                    404, "NotFound", "the server could not find the requested resource"
                )
            if verb == "watch":
                return await self._watch(request, target, entry)
            answer = await self._answer(request, entry)
            entry.status = 201 if verb == "create" else 200
        except RefusedError as refused:
            entry.status = refused.code
            headers = getattr(refused, "headers", {})
            return web.json_response(refused.status(), status=refused.code, headers=headers)
        return web.json_response(answer, status=entry.status)

    async def _answer(self, request: web.Request, entry: Request) -> Document:
        store, target, query, body = self.store, entry.target, entry.query, entry.body
        manager = query.get("fieldManager", "unknown")
        dry = query.get("dryRun") == "All"
        match entry.verb:
            case "get":
                return store.get(target)
            case "list":
                listed = {"kind": "List", "apiVersion": "v1", "items": store.all_of(target)}
                return {**listed, "metadata": {"resourceVersion": str(store.version)}}
            case "create":
                return await store.create(target, body, manager=manager, dry=dry)
            case "update":
                return await store.replace(target, body, manager=manager, dry=dry)
            case "patch":
                if request.content_type != "application/json-patch+json":
                    said = (
                        f"the body of the request was in an unknown format: {request.content_type}"
                    )
                    raise RefusedError(415, "UnsupportedMediaType", said)
                return await store.patch(target, body, manager=manager, dry=dry)
            case _:
                await store.delete(target)
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    async def _watch(
        self, request: web.Request, target: Target, entry: Request
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        entry.status = 200
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        at = int(entry.query.get("resourceVersion") or self.store.version)
        try:
            if not entry.query.get("resourceVersion") and target.key in self.store.objects:
                await _send(response, "ADDED", self.store.get(target))
            while True:
                if at < self.store.oldest:
                    gone = RefusedError(410, "Expired", f"too old resource version: {at}")
                    await _send(response, "ERROR", gone.status())
                    return response
                for change in list(self.store.changes):
                    if change.version > at:
                        at = change.version
                        if change.key == target.key:
                            await _send(response, change.kind, change.document)
                async with self.store.changed:
                    if at >= self.store.version and at >= self.store.oldest:
                        await self.store.changed.wait()
        except (ConnectionResetError, asyncio.CancelledError):
            return response
        finally:
            self._watches.discard(task)

    async def _group(self, request: web.Request) -> web.Response:
        self._user(request)
        group = request.match_info["group"]
        if group != ISTIO or not self.versions:
            # Of groups that are not there a real server says it as text.
            return web.Response(text="404 page not found\n", status=404)
        listed = [{"groupVersion": f"{group}/{each}", "version": each} for each in self.versions]
        document = {
            "kind": "APIGroup",
            "name": group,
            "versions": listed,
            "preferredVersion": listed[0],
        }
        return web.json_response(document)

    async def _review(self, request: web.Request) -> web.Response:
        user = self._user(request)
        body = await request.json()
        asked = body["spec"]["resourceAttributes"]
        target = Target(
            asked["group"], "", asked["resource"], asked["namespace"], asked.get("name", "")
        )
        allowed = self._is_allowed(user, asked["verb"], target)
        return web.json_response({**body, "status": {"allowed": allowed}}, status=201)

    # Who may.

    def _user(self, request: web.Request) -> str:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.users:
            refused = RefusedError(401, "Unauthorized", "Unauthorized")
            raise web.HTTPUnauthorized(
                text=json.dumps(refused.status()), content_type="application/json"
            )
        return self.users[token]

    def _allow(self, user: str, verb: str, target: Target) -> None:
        if self._is_allowed(user, verb, target):
            return
        name = f' "{target.name}"' if target.name else ""
        raise RefusedError(
            403,
            "Forbidden",
            f'{target.shown}{name} is forbidden: User "{user}" cannot {verb} resource "{target.plural}" '
            f'in API group "{target.group}" in the namespace "{target.namespace}"',
        )

    def _is_allowed(self, user: str, verb: str, target: Target) -> bool:
        # What is made has no name yet where a role is asked.
        name = "" if verb == "create" else target.name
        return any(
            {verb, ALL} & set(rule.verbs)
            and rule.group in {ALL, target.group}
            and rule.plural in {ALL, target.plural}
            and rule.namespace in {ALL, target.namespace}
            and (not rule.names or name in rule.names)
            for rule in self.roles[user]
        )

    async def _go_wrong(self, verb: str, target: Target) -> None:
        for fault in self.faults:
            if fault.times > 0 and (fault.verb, fault.plural) == (verb, target.plural):
                fault.times -= 1
                if not fault.status:
                    await asyncio.sleep(3600)
                refused = RefusedError(fault.status, "Made", fault.message)
                refused.headers = fault.headers
                raise refused


def kubeconfig_of(url: str, path: Path, token: str) -> Path:
    """Write a kubeconfig for a server with the certificate of the tests."""
    cluster = {"server": url, "certificate-authority": str(TLS / "cert.pem")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def _verb(request: web.Request, target: Target) -> str:
    if request.method == "GET":
        if request.query.get("watch"):
            return "watch"
        return "get" if target.name else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]


async def _send(response: web.StreamResponse, kind: str, document: Document) -> None:
    await response.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")


@asynccontextmanager
async def running_api() -> AsyncIterator[Api]:
    """Run a server for as long as the block lasts."""
    api = Api()
    await api.start()
    try:
        yield api
    finally:
        await api.stop()
