"""What istiod is told: objects with versions that are hashes of their content. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mcp.proto import decode_body, encode_body, encode_resource, hash_of

Labels = tuple[tuple[str, str], ...]
Key = tuple[Kind, str]
"""Kind, and `namespace/name`."""
EMPTY_VERSION = hash_of()
"""Of a type that we have nothing of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An object before it is judged."""

    kind: Kind
    namespace: str
    name: str
    message: Any
    """Of the kind's class in `proto.py`."""
    model: str = ""
    """Whose it is; empty where several models share it."""

    @property
    def key(self) -> Key:
        """Tells it from others."""
        return self.kind, f"{self.namespace}/{self.name}"

    @property
    def title(self) -> str:
        """For a person: `VirtualService ai/chat`."""
        return title(self.key)


def title(key: Key) -> str:
    """Name an object for a person: `VirtualService ai/chat`."""
    return f"{key[0].value} {key[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshObject:
    """An object as it is served."""

    key: Key
    version: str
    model: str
    labels: Labels
    body: bytes = field(repr=False)
    resource: bytes = field(repr=False)
    """The serialized `istio.mcp.v1alpha1.Resource`."""

    @property
    def message(self) -> Any:
        """The object's message, made anew."""
        return decode_body(self.key[0], self.body)


def finished(draft: Draft, labels: Labels) -> MeshObject:
    """Give a draft its version and bytes."""
    kind, key = draft.key
    body = encode_body(draft.message)
    said = "\n".join(f"{name}={value}" for name, value in labels)
    version = hash_of(body, said.encode())
    return MeshObject(
        key=draft.key,
        version=version,
        model=draft.model,
        labels=labels,
        body=body,
        resource=encode_resource(kind=kind, key=key, version=version, labels=labels, body=body),
    )


@dataclass(frozen=True)
class Catalog:
    """All objects at one time."""

    objects: Mapping[Key, MeshObject]

    @classmethod
    def of(cls, objects: Iterable[MeshObject]) -> Catalog:
        """Make one; the order of the objects does not matter."""
        return cls({each.key: each for each in sorted(objects, key=lambda one: one.key)})

    @functools.cached_property
    def _by_kind(self) -> dict[Kind, tuple[MeshObject, ...]]:
        return {
            kind: tuple(each for key, each in self.objects.items() if key[0] is kind)
            for kind in Kind
        }

    @functools.cached_property
    def _versions(self) -> dict[Kind, str]:
        return {
            kind: hash_of(*(f"{each.key[1]}={each.version}".encode() for each in objects))
            for kind, objects in self._by_kind.items()
        }

    def of_kind(self, kind: Kind | None) -> tuple[MeshObject, ...]:
        """Return the objects of a kind; none of a kind that we do not publish."""
        return () if kind is None else self._by_kind[kind]

    def version(self, kind: Kind | None) -> str:
        """Return the version of all objects of a kind together."""
        return EMPTY_VERSION if kind is None else self._versions[kind]

    def is_same(self, other: Catalog) -> bool:
        """Whether istiod would see no difference."""
        return self._versions == other._versions


def next_step(published: Catalog | None, wanted: Catalog) -> Catalog:
    """Return what is to be published next on the way to `wanted`.

    A route that names a host or subset before istiod has it is a 503, and so is one that still names it
    after it is gone. Three steps at most, each with time to settle before the next: what is new for hosts
    and subsets, then routes, then what no route names any more.

    Args:
        published: What istiod was told last; None = nothing yet, and then everything at once: it is not
            ready before it has all types.
        wanted: What it shall know in the end.
    """
    if published is None or published.is_same(wanted):
        return wanted
    grown = {**published.objects, **wanted.objects}
    routes_of = published if _adds(published, wanted) else wanted
    kept = [
        _with_subsets_of(published.objects.get(key), each)
        for key, each in grown.items()
        if key[0] is not Kind.VIRTUAL_SERVICE
    ]
    step = Catalog.of([*kept, *routes_of.of_kind(Kind.VIRTUAL_SERVICE)])
    return wanted if step.is_same(published) else step


def _adds(published: Catalog, wanted: Catalog) -> bool:
    """Whether hosts or subsets appear that istiod does not know."""
    for key, each in wanted.objects.items():
        before = published.objects.get(key)
        if key[0] is Kind.SERVICE_ENTRY and before is None:
            return True
        if key[0] is Kind.DESTINATION_RULE:
            known = set() if before is None else _subsets(before)
            if not known >= _subsets(each):
                return True
    return False


def _with_subsets_of(before: MeshObject | None, after: MeshObject) -> MeshObject:
    """Return `after` with the subsets that only `before` has."""
    if before is None or before is after or after.key[0] is not Kind.DESTINATION_RULE:
        return after
    if _subsets(after) >= _subsets(before):
        return after
    message, names = after.message, _subsets(after)
    message.subsets.extend(each for each in before.message.subsets if each.name not in names)
    namespace, name = after.key[1].split("/")
    draft = Draft(
        kind=after.key[0], namespace=namespace, name=name, message=message, model=after.model
    )
    return finished(draft, after.labels)


def _subsets(rule: MeshObject) -> set[str]:
    return {each.name for each in rule.message.subsets}
