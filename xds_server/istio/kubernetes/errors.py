"""What a Kubernetes API server refuses, in words that say what to do about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """Names one object of the API, or with an empty `name` all of its kind in a namespace."""

    group: str
    version: str
    plural: str
    """As in URLs and roles: `virtualservices`."""
    kind: str
    namespace: str
    name: str = ""

    @property
    def path(self) -> str:
        """Return where it is on the server."""
        base = f"/apis/{self.group}/{self.version}/namespaces/{self.namespace}/{self.plural}"
        return f"{base}/{self.name}" if self.name else base

    @property
    def collection(self) -> str:
        """Return where all of its kind in its namespace are."""
        return self.path.removesuffix(f"/{self.name}") if self.name else self.path

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name or '*'}"


class Cause(StrEnum):
    """Why a request did not do what it should; the label of the metrics."""

    CONFLICT = "conflict"
    """Somebody wrote the object since it was read, or created it first (409)."""
    FORBIDDEN = "forbidden"
    """A verb is missing in the role (403)."""
    UNAUTHORIZED = "unauthorized"
    """The server does not know who we are (401)."""
    NOT_FOUND = "not_found"
    """There is no such object, namespace or kind (404)."""
    INVALID = "invalid"
    """The server's validation, an admission webhook or a `test` of a patch says no (400, 422)."""
    BUSY = "busy"
    """The server asks to come back later (429)."""
    GONE = "gone"
    """A watch began too long ago (410)."""
    SERVER = "server"
    """The server has trouble of its own (5xx)."""
    UNREACHABLE = "unreachable"
    """There was no answer."""


_CAUSES = {
    400: Cause.INVALID,
    401: Cause.UNAUTHORIZED,
    403: Cause.FORBIDDEN,
    404: Cause.NOT_FOUND,
    409: Cause.CONFLICT,
    410: Cause.GONE,
    422: Cause.INVALID,
    429: Cause.BUSY,
}


class KubernetesError(Exception):
    """One request that failed.

    Attributes:
        cause: What kind of failure.
        verb: What was tried, as roles name it: `get`, `update`, ...
        ref: On what.
        said: The server's own words.
        retry_after_s: When the server wants to be asked again; None if it did not say.
    """

    def __init__(
        self,
        cause: Cause,
        *,
        verb: str,
        ref: Ref | None,
        said: str,
        retry_after_s: float | None = None,
    ) -> None:
        self.cause = cause
        self.verb = verb
        self.ref = ref
        self.said = said
        self.retry_after_s = retry_after_s
        super().__init__(_explained(cause, verb, ref, said))


class AuthError(Exception):
    """There is nothing to sign in with: no service account, or a kubeconfig that cannot be used."""


def of_status(
    status: int, body: str, *, verb: str, ref: Ref | None, retry_after: str | None = None
) -> KubernetesError:
    """Return the error for an answer that is not a success.

    Args:
        status: HTTP status.
        body: What came with it: a `Status` object, or whatever a proxy in between wrote.
        verb: What was tried.
        ref: On what.
        retry_after: The header of that name.
    """
    cause = _CAUSES.get(status, Cause.SERVER if status >= 500 else Cause.INVALID)
    wait_s = float(retry_after) if retry_after and retry_after.isdigit() else None
    return KubernetesError(
        cause, verb=verb, ref=ref, said=_said(status, body), retry_after_s=wait_s
    )


def _said(status: int, body: str) -> str:
    try:
        document: Any = json.loads(body)
    except ValueError:
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    text = str(message or " ".join(body.split())[:300] or "nothing")
    return f"{status} {text}"


def rule_for(ref: Ref, *verbs: str) -> str:
    """Return the rule of a role that allows these verbs, as it is written in a manifest."""
    named = f", resourceNames: [{ref.name}]" if ref.name and "create" not in verbs else ""
    return (
        f"{{apiGroups: [{ref.group}], resources: [{ref.plural}]{named}, "
        f"verbs: [{', '.join(verbs)}]}}"
    )


def _explained(cause: Cause, verb: str, ref: Ref | None, said: str) -> str:
    if ref is None:
        return f"Cannot {verb}: {said}."
    said = said.rstrip(".")
    match cause:
        case Cause.FORBIDDEN if "is forbidden: User" in said or "cannot" in said:
            return (
                f"Not allowed to {verb} {ref}: the verb {verb!r} on {ref.plural}.{ref.group} in namespace "
                f"{ref.namespace} is missing. Add {rule_for(ref, verb)} to a Role there and bind it to "
                f"this account (deploy/istio/kubernetes). The server said: {said}."
            )
        case Cause.FORBIDDEN:
            return f"The server refuses to {verb} {ref}, by a policy or a quota and not for want of a role: {said}."
        case Cause.UNAUTHORIZED:
            return (
                f"The server does not know who asks to {verb} {ref}: the token or certificate is wrong or "
                f"has ended. The server said: {said}."
            )
        case Cause.CONFLICT:
            return f"Somebody else wrote {ref} in between: {said}."
        case Cause.NOT_FOUND if verb == "create" and ref.group.endswith(".k8s.io"):
            return (
                f"Cannot create {ref}: namespace {ref.namespace} is not there; create it, or mend "
                f"istio.kubernetes.namespace. The server said: {said}."
            )
        case Cause.NOT_FOUND if verb == "create":
            return (
                f"Cannot create {ref}: namespace {ref.namespace} or the kind {ref.kind} of "
                f"{ref.group}/{ref.version} is not there; create the namespace, or install Istio's CRDs. "
                f"The server said: {said}."
            )
        case Cause.NOT_FOUND:
            return f"There is no {ref}: {said}."
        case Cause.INVALID:
            return f"The server finds {ref} wrong and keeps what it has ({verb}): {said}."
        case Cause.BUSY:
            return f"The server is busy and wants to be asked later ({verb} {ref}): {said}."
        case Cause.GONE | Cause.SERVER | Cause.UNREACHABLE:
            return f"Cannot {verb} {ref}: {said}."
