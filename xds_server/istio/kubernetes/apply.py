"""Bring the cluster to what is wanted once, or show what that would be: for people, without a running server."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xds_server.istio.kubernetes.change import Refusal, Unchanged, Wanted, decide
from xds_server.istio.kubernetes.client import Document, KubernetesClient
from xds_server.istio.kubernetes.errors import Cause, KubernetesError, Ref, rule_for
from xds_server.istio.kubernetes.lease import see
from xds_server.istio.kubernetes.objects import GROUP
from xds_server.istio.kubernetes.route_patch import Patched

LOOK_AGAIN_MOST_S = 10.0
"""A lease that looks over is looked at again after a third of its time, and not later than this."""
UNCHANGED, REFUSED, FAILED = "unchanged", "refused", "failed"
_LEASE_VERBS = ("get", "create", "update")
_OBJECT_VERBS = ("get", "watch", "create", "update")
_PATCH_VERBS = ("get", "watch", "patch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one object, or would."""

    object: str
    action: str
    """`create`, `update`, `patch`, `unchanged`, `refused` or `failed`."""
    summary: str
    """Its weights."""
    text: str
    """Why it was refused or failed, for a person."""
    body: Any
    """What is sent: a document, or the operations of a JSON Patch; None where nothing is."""

    @property
    def is_good(self) -> bool:
        """Whether the object is, or would be, as it shall be."""
        return self.action not in {REFUSED, FAILED}


async def settle(client: KubernetesClient, wanted: Wanted, *, dry_run: bool) -> Outcome:
    """Write one object if it has to be; in a dry run the server judges the write and keeps nothing.

    Never raises on account of the server: the outcome says it.
    """
    try:
        live = await _live(client, wanted.ref)
        found = decide(wanted, live)
        if isinstance(found, Refusal):
            return _outcome(wanted, REFUSED, text=found.text)
        if isinstance(found, Unchanged):
            return _outcome(wanted, UNCHANGED)
    except KubernetesError as error:
        return _outcome(wanted, FAILED, text=str(error))
    try:
        match found.verb:
            case "create":
                await client.create(wanted.ref, found.body, dry_run=dry_run)
            case "update":
                await client.replace(wanted.ref, found.body, dry_run=dry_run)
            case _:
                await client.patch(wanted.ref, found.body, dry_run=dry_run)
    except KubernetesError as error:
        return _outcome(wanted, FAILED, text=str(error), body=found.body)
    return _outcome(wanted, found.verb, body=found.body)


def offline(wanted: Wanted) -> Outcome:
    """Return what would be written where nothing is known of the cluster."""
    if isinstance(wanted, Patched):
        text = "which patch it would be depends on the VirtualService: ask the server"
        return _outcome(wanted, "patch", text=text)
    return _outcome(wanted, "create", body=wanted.document())


def _outcome(wanted: Wanted, action: str, *, text: str = "", body: Any = None) -> Outcome:
    return Outcome(
        object=str(wanted.ref), action=action, summary=wanted.summary, text=text, body=body
    )


async def _live(client: KubernetesClient, ref: Ref) -> Document | None:
    try:
        return await client.get(ref)
    except KubernetesError as error:
        if error.cause is Cause.NOT_FOUND:
            return None
        raise


async def missing_rules(
    client: KubernetesClient, wanted: Sequence[Wanted], lease: Ref
) -> list[str]:
    """Return the rules that the account's roles lack, each with its namespace, as the server's authorizer sees it.

    Raises:
        KubernetesError: The server does not say.
    """
    needs = [
        (lease, _LEASE_VERBS),
        *(
            (each.ref, _PATCH_VERBS if isinstance(each, Patched) else _OBJECT_VERBS)
            for each in wanted
        ),
    ]
    texts = []
    for ref, verbs in needs:
        missing = [verb for verb in verbs if not await client.may(verb, ref)]
        if missing:
            texts.append(f"in namespace {ref.namespace}: {rule_for(ref, *missing)}")
    return list(dict.fromkeys(texts))


async def writer(client: KubernetesClient, lease: Ref, wall: float) -> str:
    """Return which control plane holds the lease and renews it; empty where none does.

    Raises:
        KubernetesError: The server does not say.
    """
    seen = see(await _live(client, lease) or {}, None, wall)
    if seen.is_free or not seen.renewed:
        return ""
    age_s = wall - dt.datetime.fromisoformat(seen.renewed).timestamp()
    if age_s < seen.duration_s:
        return seen.holder
    # By our clock it is over. Clocks of machines differ, and who renews it holds it.
    await asyncio.sleep(min(LOOK_AGAIN_MOST_S, seen.duration_s / 3))
    again = see(await _live(client, lease) or {}, seen, wall)
    return "" if again.renewed == seen.renewed else again.holder


async def preferred_version(client: KubernetesClient) -> str | None:
    """Return the version of Istio's API that the server prefers; None where it has none.

    Raises:
        KubernetesError: The server does not say.
    """
    return next(iter(await client.versions(GROUP)), None)
