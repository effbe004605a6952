"""Who of several control planes writes: the holder of a Lease (coordination.k8s.io/v1). Pure.

The rules are those of client-go's leader election, so that `kubectl get lease` means the same for us:

- clocks of machines are not compared. A holder that did not renew for `duration_s` *since we first saw its
  last renewal*, by our own monotonic clock, has lost it.
- a holder trusts its own lease only until `deadline_s` after it *sent* the last renewal that was accepted;
  it is shorter than the duration, so that it stops before anybody else may begin.
- who ends in good order empties the lease, and the next one needs not wait.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from xds_server.istio.kubernetes.errors import Ref

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """Times of the election, in seconds."""

    duration_s: float
    """Others wait this long after the last renewal they saw."""
    deadline_s: float
    """The holder stops this long after the last renewal that succeeded; below the duration."""
    retry_s: float
    """Time between two renewals, or looks at somebody else's lease."""

    @classmethod
    def of(cls, duration_s: float) -> LeaseRules:
        """Return client-go's proportions: 15, 10 and 2 of 15 seconds."""
        return cls(
            duration_s=duration_s, deadline_s=duration_s * 10 / 15, retry_s=duration_s * 2 / 15
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A lease as it was when it last changed, and when we saw that."""

    holder: str
    renewed: str
    """`renewTime` as written; only compared with itself."""
    duration_s: float
    """What its holder asks others to wait."""
    transitions: int
    at: float
    """Monotonic seconds at which we first saw it so."""

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it."""
        return not self.holder


def ref(namespace: str, name: str) -> Ref:
    """Name a lease."""
    return Ref(
        group="coordination.k8s.io",
        version="v1",
        plural="leases",
        kind="Lease",
        namespace=namespace,
        name=name,
    )


def see(document: Document, before: Seen | None, now: float) -> Seen:
    """Return what is seen of a lease; the moment stays that of the first look while nothing changes."""
    spec = document.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
    is_same = before is not None and (before.holder, before.renewed) == (holder, renewed)
    return Seen(
        holder=holder,
        renewed=renewed,
        duration_s=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
        at=before.at if is_same and before is not None else now,
    )


def may_take(seen: Seen, me: str, now: float) -> bool:
    """Return whether `me` may write its name into the lease."""
    return seen.is_free or seen.holder == me or now >= seen.at + seen.duration_s


def taken(
    document: Document | None, *, target: Ref, me: str, rules: LeaseRules, wall: float
) -> Document:
    """Return the lease as `me` would write it: a renewal, a takeover, or a new one.

    Args:
        document: The lease as it was read; None = there is none.
        target: Its name.
        me: Who writes.
        rules: The times.
        wall: Seconds since 1970, for people who look at it.
    """
    stamp = micro_time(wall)
    old = dict((document or {}).get("spec") or {})
    is_mine = old.get("holderIdentity") == me
    spec = {
        **old,
        "holderIdentity": me,
        # Whole seconds, at least 1: the server's validation takes nothing else.
        "leaseDurationSeconds": max(1, round(rules.duration_s)),
        "renewTime": stamp,
        "acquireTime": old.get("acquireTime", stamp) if is_mine else stamp,
        "leaseTransitions": int(old.get("leaseTransitions") or 0)
        + (0 if is_mine or document is None else 1),
    }
    return _written(document, target, spec)


def released(document: Document, *, target: Ref, wall: float) -> Document:
    """Return the lease emptied, for the next one to take at once."""
    stamp = micro_time(wall)
    old = dict(document.get("spec") or {})
    spec = {
        **old,
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "renewTime": stamp,
        "acquireTime": stamp,
    }
    return _written(document, target, spec)


def _written(document: Document | None, target: Ref, spec: Document) -> Document:
    metadata = dict((document or {}).get("metadata") or {})
    metadata |= {"name": target.name, "namespace": target.namespace}
    return {
        "apiVersion": f"{target.group}/{target.version}",
        "kind": target.kind,
        "metadata": metadata,
        "spec": spec,
    }


def micro_time(wall: float) -> str:
    """Write a moment as the API's MicroTime."""
    moment = dt.datetime.fromtimestamp(wall, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
