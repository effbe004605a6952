"""What has to be done to an object: nothing, a write, or a refusal with its reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xds_server.istio.kubernetes.objects import MANAGED_BY, MODEL, OURS, OWNER, Owned
from xds_server.istio.kubernetes.route_patch import Patched, PatchRefusedError

Document = dict[str, Any]
Wanted = Owned | Patched


def title_of(wanted: Wanted) -> str:
    """Name what is kept, for people: an object, or a route in one."""
    return f"{wanted.ref} route {wanted.route}" if isinstance(wanted, Patched) else str(wanted.ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write."""

    verb: str
    """`create`, `update` or `patch`."""
    body: Any
    """A document, or the operations of a JSON Patch."""
    adds: bool
    """It names a destination that was not there before: what that needs must be in place first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing may be written."""

    reason: str
    """Label of the metric: `not_ours`, `other_owner`, `no_object`, `route`, `fault`, `needs`."""
    text: str
    """What to do about it, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """It is as it shall be."""

    live: Document = field(repr=False)


def decide(wanted: Wanted, live: Document | None) -> Change | Refusal | Unchanged:
    """Return what is to be done.

    Args:
        wanted: How it shall be.
        live: How it is; None where it is not there.
    """
    if isinstance(wanted, Patched):
        return _of_patch(wanted, live)
    if wanted.fault:
        return Refusal(reason="fault", text=f"{wanted.ref} is held back: {wanted.fault}")
    if live is None:
        return Change(verb="create", body=wanted.document(), adds=True)
    if (refusal := not_ours(wanted, live)) is not None:
        return refusal
    if live.get("spec") == wanted.spec and _is_labelled(wanted, live):
        return Unchanged(live=live)
    adds = not _hosts(wanted.spec) <= _hosts(live.get("spec") or {})
    return Change(verb="update", body=wanted.document(live), adds=adds)


def not_ours(wanted: Owned, live: Document) -> Refusal | None:
    """Return why an object that is there may not be written; None if it is ours."""
    metadata = live.get("metadata") or {}
    managed = (metadata.get("labels") or {}).get(MANAGED_BY)
    if managed != OURS:
        by = f", by its label it is {managed}'s" if managed else ""
        return Refusal(
            reason="not_ours",
            text=f"{wanted.ref} is there and was not made by gpu-xds{by}: it is left alone. Choose another "
            f"istio.models[].name, or hand it over with `kubectl label -n {wanted.ref.namespace} "
            f"{wanted.ref.plural}.{wanted.ref.group} {wanted.ref.name} {MANAGED_BY}={OURS}`",
        )
    owner = (metadata.get("annotations") or {}).get(OWNER)
    if owner not in (None, wanted.owner):
        return Refusal(
            reason="other_owner",
            text=f"{wanted.ref} is written by another installation of gpu-xds (lease {owner}; ours is "
            f"{wanted.owner}): it is left alone. Choose another istio.models[].name; if that was this one under "
            f"another lease, `kubectl annotate --overwrite -n {wanted.ref.namespace} {wanted.ref.plural}."
            f"{wanted.ref.group} {wanted.ref.name} {OWNER}={wanted.owner}`",
        )
    return None


def _of_patch(wanted: Patched, live: Document | None) -> Change | Refusal | Unchanged:
    if live is None:
        return Refusal(
            reason="no_object",
            text=f"There is no {wanted.ref} whose weights could be set: make it, or mend "
            "istio.kubernetes.patch",
        )
    try:
        operations = wanted.operations(live)
    except PatchRefusedError as error:
        return Refusal(reason="route", text=str(error))
    if not operations:
        return Unchanged(live=live)
    return Change(verb="patch", body=operations, adds=False)


def _is_labelled(wanted: Owned, live: Document) -> bool:
    metadata = live.get("metadata") or {}
    return (metadata.get("labels") or {}).get(MODEL, "") == wanted.model and (
        metadata.get("annotations") or {}
    ).get(OWNER) == wanted.owner


def _hosts(spec: Document) -> set[tuple[str, str]]:
    """Return the hosts and subsets that the routes of a spec go to."""
    return {
        (each["destination"].get("host", ""), each["destination"].get("subset", ""))
        for route in spec.get("http") or ()
        for each in route.get("route") or ()
        if each.get("destination")
    }
