"""Requests to a Kubernetes API server, on plain documents; every failure is a `KubernetesError`.

The only module that sends anything: kubernetes_asyncio's transport without its models, which hold none of
Istio's kinds anyway. Importing it costs 37 MB, so only `parts.py` imports it, when it is asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.exceptions import ApiException

from xds_server import __version__
from xds_server.istio.kubernetes.auth import SignIn, signed_in
from xds_server.istio.kubernetes.errors import AuthError, Cause, KubernetesError, Ref, of_status

MANAGER = "gpu-xds"
"""Our name in `managedFields`."""
TIMEOUT_S = 10.0
"""No request but a watch may take longer."""
CONNECT_TIMEOUT_S = 5.0
WATCH_S = 290
"""A watch is begun anew after this long; servers cut it after five to ten minutes anyway."""
SILENCE_S = 60.0
"""Added to `WATCH_S`: a watch that outlives it lost its server without a word."""
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError, ValueError, RuntimeError)
"""How a connection fails; aiohttp says `RuntimeError` where it ended between two reads."""

Document = dict[str, Any]
_JSON_PATCH = "application/json-patch+json"
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}


class KubernetesClient:
    """One connection pool to one server. Close it, or use it in `async with`."""

    def __init__(self, sign_in: SignIn) -> None:
        self._sign_in = sign_in
        self._session: _Session | None = None
        self._leaving: set[_Session] = set()
        """Sessions whose credentials are over, until their last request is."""
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Read the credentials.

        Raises:
            AuthError: There are none, or they cannot be used.
        """
        await self._opened()

    async def close(self) -> None:
        """Drop every connection."""
        sessions = [*self._leaving, *([] if self._session is None else [self._session])]
        self._leaving.clear()
        self._session = None
        for each in sessions:
            await each.api.close()

    @property
    def server(self) -> str:
        """Return the address of the server; empty before `open`."""
        return "" if self._session is None else str(self._session.api.configuration.host)

    async def get(self, ref: Ref) -> Document:
        """Return an object.

        Raises:
            KubernetesError: There was no good answer.
        """
        return await self._ask("get", ref, ref.path)

    async def all_of(self, ref: Ref) -> list[Document]:
        """Return all objects of a kind in a namespace.

        Raises:
            KubernetesError: There was no good answer.
        """
        found = await self._ask("list", ref, ref.collection)
        return list(found.get("items") or ())

    async def create(
        self, ref: Ref, body: Document, *, dry_run: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Document:
        """Make an object and return it as stored.

        Raises:
            KubernetesError: It was not made; `CONFLICT` where it is there already.
        """
        return await self._ask(
            "create",
            ref,
            ref.collection,
            body=body,
            query=_writing(dry_run),
            timeout_s=timeout_s,
        )

    async def replace(
        self,
        ref: Ref,
        body: Document,
        *,
        dry_run: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Document:
        """Put an object in the place of the one whose resourceVersion it carries.

        Raises:
            KubernetesError: It was not written; `CONFLICT` where somebody wrote it in between.
        """
        return await self._ask(
            "update", ref, ref.path, body=body, query=_writing(dry_run), timeout_s=timeout_s
        )

    async def patch(
        self,
        ref: Ref,
        operations: list[Document],
        *,
        dry_run: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Document:
        """Apply a JSON Patch (RFC 6902): all of its operations or none.

        Raises:
            KubernetesError: Nothing was changed; `INVALID` where a `test` failed.
        """
        return await self._ask(
            "patch",
            ref,
            ref.path,
            body=operations,
            query=_writing(dry_run),
            timeout_s=timeout_s,
            content_type=_JSON_PATCH,
        )

    async def versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of a group that the server has, its preferred one first; none if it has no such group.

        Raises:
            KubernetesError: There was no good answer.
        """
        try:
            found = await self._ask("get", None, f"/apis/{group}")
        except KubernetesError as error:
            if error.cause is Cause.NOT_FOUND:
                return ()
            raise
        preferred = str(found.get("preferredVersion", {}).get("version", ""))
        listed = [str(each["version"]) for each in found.get("versions", ())]
        return tuple(dict.fromkeys([each for each in (preferred, *listed) if each]))

    async def may(self, verb: str, ref: Ref) -> bool:
        """Return whether this account may do that, as the server's own authorizer sees it.

        Raises:
            KubernetesError: There was no good answer.
        """
        asked = {
            "group": ref.group,
            "resource": ref.plural,
            "namespace": ref.namespace,
            "verb": verb,
            "name": ref.name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        found = await self._ask("create", None, path, body=body)
        return bool(found.get("status", {}).get("allowed"))

    async def watch(self, ref: Ref, since: str = "") -> AsyncIterator[tuple[str, Document]]:
        """Yield what happens to one object after a resourceVersion, until the server ends it.

        Without a version the object as it is comes first.

        Yields:
            `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`, and the object.

        Raises:
            KubernetesError: It cannot be watched, or no longer; `GONE` where `since` is too old.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={ref.name}",
            **({"resourceVersion": since} if since else {}),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(
            connect=CONNECT_TIMEOUT_S, sock_read=WATCH_S + SILENCE_S, total=None
        )
        async with self._using("watch", ref) as session:
            try:
                response = await session.api.call_api(
                    ref.collection,
                    "GET",
                    query_params=list(query.items()),
                    header_params={"Accept": "application/json"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _request_timeout=timeout,
                )
                try:
                    if response.status != 200:
                        raise await self._refused(response, ref, session)
                    async for line in response.content:
                        yield _event(line, ref)
                finally:
                    response.close()
            except _BROKEN as error:
                raise _unreachable(error, "watch", ref) from error

    async def _refused(self, response: Any, ref: Ref, session: _Session) -> KubernetesError:
        text = await response.text(errors="replace")
        if response.status == 401:
            self._leave(session)
        return of_status(
            response.status,
            text,
            verb="watch",
            ref=ref,
            retry_after=response.headers.get("Retry-After"),
        )

    def _leave(self, session: _Session) -> None:
        """Sign in anew with the next request, unless another one has done so; what is under way is not cut."""
        if self._session is session:
            self._session = None
            self._leaving.add(session)

    async def _opened(self) -> _Session:
        async with self._opening:
            if self._session is None:
                api = ApiClient(await signed_in(self._sign_in))
                api.user_agent = f"gpu-xds/{__version__}"
                self._session = _Session(api)
            return self._session

    @asynccontextmanager
    async def _using(self, verb: str, ref: Ref | None) -> AsyncIterator[_Session]:
        try:
            session = await self._opened()
        except AuthError as error:
            # It could be used when it was read first: whoever replaces the file may not be done yet.
            raise KubernetesError(
                Cause.UNAUTHORIZED, verb=verb, ref=ref, said=str(error)
            ) from error
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            if not session.users and session in self._leaving:
                self._leaving.remove(session)
                await session.api.close()

    async def _ask(
        self,
        verb: str,
        ref: Ref | None,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        content_type: str = "application/json",
    ) -> Document:
        request = _Request(
            verb=verb,
            ref=ref,
            path=path,
            body=body,
            query=query or {},
            timeout_s=timeout_s,
            content_type=content_type,
        )
        try:
            return await self._send(request)
        except KubernetesError as error:
            if error.cause is not Cause.UNAUTHORIZED:
                raise
        # Tokens of accounts and of plugins end: they are read again, once.
        return await self._send(request)

    async def _send(self, request: _Request) -> Document:
        verb, ref = request.verb, request.ref
        async with self._using(verb, ref) as session:
            try:
                found: Document = await session.api.call_api(
                    request.path,
                    _METHODS[verb],
                    query_params=list(request.query.items()),
                    header_params={
                        "Accept": "application/json",
                        "Content-Type": request.content_type,
                    },
                    body=request.body,
                    auth_settings=["BearerToken"],
                    response_types_map={200: "object", 201: "object"},
                    _return_http_data_only=True,
                    _request_timeout=request.timeout_s,
                )
            except ApiException as error:
                if error.status == 401:
                    self._leave(session)
                headers: Mapping[str, str] = error.headers or {}
                raise of_status(
                    int(error.status or 0),
                    str(error.body or ""),
                    verb=verb,
                    ref=ref,
                    retry_after=headers.get("Retry-After"),
                ) from error
            except _BROKEN as error:
                raise _unreachable(error, verb, ref) from error
        if not isinstance(found, dict):
            raise KubernetesError(
                Cause.SERVER, verb=verb, ref=ref, said=f"not an object: {str(found)[:60]}"
            )
        return found


@dataclass(slots=True, eq=False)
class _Session:
    """Connections with one sign-in."""

    api: ApiClient
    users: int = 0
    """Requests under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    verb: str
    ref: Ref | None
    path: str
    body: Any
    query: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float
    content_type: str


def _writing(dry_run: bool) -> dict[str, str]:
    # Strict: a field that the server's schema does not know is an error, not dropped in silence.
    query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
    return {**query, "dryRun": "All"} if dry_run else query


def _event(line: bytes, ref: Ref) -> tuple[str, Document]:
    event = json.loads(line)
    kind, found = str(event["type"]), event["object"]
    if kind == "ERROR":
        raise of_status(int(found.get("code", 500)), json.dumps(found), verb="watch", ref=ref)
    return kind, found


def _unreachable(error: Exception, verb: str, ref: Ref | None) -> KubernetesError:
    said = str(error) or type(error).__name__
    return KubernetesError(Cause.UNREACHABLE, verb=verb, ref=ref, said=f"no answer ({said})")
