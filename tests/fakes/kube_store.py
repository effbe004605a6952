"""What an API server keeps, and the rules by which it lets it be changed. No HTTP here."""

from __future__ import annotations

import asyncio
import copy
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import json_patch, kube_schema

Document = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""


class RefusedError(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Document:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(slots=True)
class Change:
    """One change, for those who watch."""

    version: int
    kind: str
    key: Key
    document: Document


@dataclass(slots=True)
class Target:
    """What a request is about."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return self.group, self.plural, self.namespace, self.name

    @property
    def shown(self) -> str:
        return f"{self.plural}.{self.group}"


@dataclass
class Store:
    """All objects, with one counter for all versions, as etcd has it."""

    namespaces: set[str] = field(default_factory=lambda: {"ai", "gpu-xds", "default"})
    objects: dict[Key, Document] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    oldest: int = 0
    """Changes up to here are forgotten: a watch from before them is 410."""
    version: int = 100

    def __post_init__(self) -> None:
        self.kinds = kube_schema.kinds()
        self.changed = asyncio.Condition()

    def get(self, target: Target) -> Document:
        found = self.objects.get(target.key)
        if found is None:
            raise RefusedError(404, "NotFound", f'{target.shown} "{target.name}" not found')
        return self._as_version(found, target)

    def all_of(self, target: Target) -> list[Document]:
        return [
            self._as_version(each, target)
            for key, each in sorted(self.objects.items())
            if key[:3] == target.key[:3]
        ]

    async def create(self, target: Target, body: Document, *, manager: str, dry: bool) -> Document:
        metadata = body.get("metadata") or {}
        target.name = metadata.get("name", "")
        if target.namespace not in self.namespaces:
            raise RefusedError(404, "NotFound", f'namespaces "{target.namespace}" not found')
        if metadata.get("resourceVersion"):
            raise RefusedError(
                422, "Invalid", "resourceVersion should not be set on objects to be created"
            )
        self._judge(target, body)
        if target.key in self.objects:
            raise RefusedError(
                409, "AlreadyExists", f'{target.shown} "{target.name}" already exists'
            )
        made = copy.deepcopy(body)
        made["metadata"] |= {
            "namespace": target.namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": _now(),
            "generation": 1,
        }
        return await self._keep("ADDED", target, made, manager, dry=dry)

    async def replace(self, target: Target, body: Document, *, manager: str, dry: bool) -> Document:
        self._judge(target, body)
        old = self.get(target)
        given = (body.get("metadata") or {}).get("resourceVersion")
        if not given and target.group != "coordination.k8s.io":
            said = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise RefusedError(422, "Invalid", f'{target.shown} "{target.name}" is invalid: {said}')
        if given and given != old["metadata"]["resourceVersion"]:
            raise RefusedError(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {target.shown} "{target.name}": the object has been '
                "modified; please apply your changes to the latest version and try again",
            )
        return await self._changed(target, old, body, manager, dry=dry)

    async def patch(
        self, target: Target, operations: list[Document], *, manager: str, dry: bool
    ) -> Document:
        old = self.get(target)
        try:
            made = json_patch.apply(old, operations)
        except json_patch.PatchError as error:
            raise RefusedError(422, "Invalid", str(error)) from None
        self._judge(target, made)
        return await self._changed(target, old, made, manager, dry=dry)

    async def delete(self, target: Target) -> None:
        old = self.get(target)
        del self.objects[target.key]
        self.version += 1
        await self._tell(Change(self.version, "DELETED", target.key, old))

    async def forget_changes(self) -> None:
        """Compact: watches from before now are told that it is too late."""
        self.changes.clear()
        self.oldest = self.version
        async with self.changed:
            self.changed.notify_all()

    def _judge(self, target: Target, body: Document) -> None:
        kind, schema = self.kinds[target.group, target.version, target.plural]
        if body.get("kind") != kind or body.get("apiVersion") != f"{target.group}/{target.version}":
            said = f"the API version or kind in the data does not match {kind} of the URL"
            raise RefusedError(400, "BadRequest", said)
        if target.name != (body.get("metadata") or {}).get("name"):
            raise RefusedError(400, "BadRequest", "the name of the object does not match the URL")
        if strange := kube_schema.unknown(body, schema):
            listed = ", ".join(f'unknown field "{each}"' for each in strange)
            said = (
                f'{kind} in version "{target.version}" cannot be handled as a {kind}: '
                f"strict decoding error: {listed}"
            )
            raise RefusedError(400, "BadRequest", said)
        if problems := kube_schema.wrong(body, schema):
            said = f'{kind}.{target.group} "{target.name}" is invalid: {", ".join(problems)}'
            raise RefusedError(422, "Invalid", said)

    async def _changed(
        self, target: Target, old: Document, body: Document, manager: str, *, dry: bool
    ) -> Document:
        made = copy.deepcopy(body)
        fixed = ("uid", "creationTimestamp", "generation", "resourceVersion", "managedFields")
        made["metadata"] |= {key: old["metadata"][key] for key in fixed}
        made["metadata"]["namespace"] = target.namespace
        if made == old:
            return old
        if made.get("spec") != old.get("spec"):
            made["metadata"]["generation"] += 1
        return await self._keep("MODIFIED", target, made, manager, dry=dry)

    async def _keep(
        self, kind: str, target: Target, made: Document, manager: str, *, dry: bool
    ) -> Document:
        managers = [
            each for each in made["metadata"].get("managedFields", ()) if each["manager"] != manager
        ]
        written = {"manager": manager, "operation": "Update", "time": _now()}
        made["metadata"]["managedFields"] = [*managers, written]
        if dry:
            return made
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        self.objects[target.key] = made
        await self._tell(Change(self.version, kind, target.key, copy.deepcopy(made)))
        return made

    async def _tell(self, change: Change) -> None:
        self.changes.append(change)
        async with self.changed:
            self.changed.notify_all()

    def _as_version(self, found: Document, target: Target) -> Document:
        copied = copy.deepcopy(found)
        copied["apiVersion"] = f"{target.group}/{target.version}"
        return copied


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
