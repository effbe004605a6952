"""What has to be sent: from what a client holds to what it should hold (pure).

One question per type, three kinds of answers: SotW with full state (CDS, LDS), SotW in parts (all other
types, R21) and delta. The rules about rejected, blocked and retained resources are the same for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from xds_server.resources.snapshot import EXTENSION_CONFIG, Resource, TypeSnapshot
from xds_server.xds.subscription import FULL_STATE, Subscription
from xds_server.xds.view import View

LEFT_ALONE = frozenset({EXTENSION_CONFIG})
"""Types of which nothing is ever removed (R42): Envoy answers 500 where the configuration of a filter was taken away,
and connections keep the filters that they were opened with, for minutes after their listener has none of them."""

Rejection = tuple[str, str]
"""Name and version of a resource that the client refused."""


class Protocol(StrEnum):
    """The two variants of the transport protocol."""

    SOTW = "sotw"
    DELTA = "delta"


class Question(NamedTuple):
    """Everything the answer depends on besides the resources of the version named here.

    Equal questions have equal answers, which is what makes an answer shareable between streams.
    """

    protocol: Protocol
    type_url: str
    version: str
    """Version of the type in the snapshot."""
    view: View
    subscription: Subscription
    asked: frozenset[str] = frozenset()
    """SotW: names that were subscribed since the last response; a full state answers them (R18)."""
    fresh: bool = False
    """Nothing of this type has been sent on the stream."""
    rejected: frozenset[Rejection] = frozenset()
    blocked: frozenset[str] = frozenset()
    """Names that must wait for a cluster: what is held of them stays (R14)."""
    retained: frozenset[str] = frozenset()
    """Names that the client still refers to: not removed yet (R13)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The content of one response and the view of a client that accepts it."""

    version: str
    """`version_info` or `system_version_info`."""
    resources: tuple[Resource, ...]
    removed: tuple[str, ...]
    """Delta only; SotW removes by absence."""
    changed: frozenset[str]
    """Names of resources whose content is new for the client."""
    view: View


def answer(question: Question, current: TypeSnapshot) -> Answer | None:
    """Return what to send, or None when the client holds what it should (R7).

    Args:
        question: The client's state.
        current: The resources of the type, of version `question.version`.
    """
    held = question.view.held
    wanted = _wanted(question.subscription, current)
    desired: dict[str, Resource] = {}
    for each in wanted:
        kept: Resource | None = each
        if (each.name, each.version) in question.rejected or each.name in question.blocked:
            kept = held.get(each.name)
        if kept is not None:
            desired[kept.name] = kept
    for name in sorted(question.retained):
        if name not in desired and name in held:
            desired[name] = held[name]
    changed = frozenset(
        name
        for name, each in desired.items()
        if (old := held.get(name)) is None or old.version != each.version
    )
    gone = [name for name in held if name not in desired and question.subscription.wants(name)]
    if question.protocol is Protocol.DELTA:
        return _delta(question, desired, changed, gone)
    if question.type_url in FULL_STATE:
        if not (question.fresh or question.asked or changed or gone):
            return None
        view = View(desired)
        version = _version(question, view)
        return Answer(version, tuple(desired.values()), (), changed, view)
    if not changed:
        return None
    # Absence deletes nothing here, so what vanished from the snapshot is still held by the client (R21).
    view = View({**{name: held[name] for name in gone}, **desired})
    resources = tuple(desired[name] for name in desired if name in changed)
    return Answer(_version(question, view), resources, (), changed, view)


def _delta(
    question: Question,
    desired: dict[str, Resource],
    changed: frozenset[str],
    gone: list[str],
) -> Answer | None:
    held = question.view.held
    kept = gone if question.type_url in LEFT_ALONE else ()
    removed = tuple(sorted(set(gone).difference(kept)))
    # A first wildcard request is answered even by nothing: the client's start-up waits for it (R37).
    hello = question.fresh and question.subscription.wildcard
    if not (changed or removed or hello):
        return None
    view = View({**{name: held[name] for name in kept}, **desired})
    resources = tuple(desired[name] for name in desired if name in changed)
    return Answer(_version(question, view), resources, removed, changed, view)


def _wanted(subscription: Subscription, current: TypeSnapshot) -> Iterable[Resource]:
    if subscription.wildcard:
        return current.resources.values()
    names = subscription.names
    if len(names) < len(current.resources):
        return [current.resources[name] for name in sorted(names) if name in current.resources]
    return [each for name, each in current.resources.items() if name in names]


def _version(question: Question, view: View) -> str:
    if not (question.rejected or question.blocked or question.retained):
        return question.version
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(view.held):
        digest.update(f"{name}\0{view.held[name].version}\0".encode())
    return digest.hexdigest()
